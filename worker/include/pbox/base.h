/* libpbox: the declarations that every header needs. Included by pbox.h. */
#ifndef PBOX_BASE_H
#define PBOX_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PBOX_API __attribute__((visibility("default")))
#else
#define PBOX_API
#endif

#define PBOX_ABI_VERSION 1

typedef enum pbox_status {
  PBOX_OK = 0,
  PBOX_INVALID_ARGUMENT = 1,
  PBOX_NOT_FOUND = 2,
  PBOX_ALREADY_EXISTS = 3,     /* for example, another worker already has this rank */
  PBOX_RESOURCE_EXHAUSTED = 4, /* a quota of the box is used up; the message names the quota */
  PBOX_UNAVAILABLE = 5,        /* the box cannot be reached, or it refuses */
  PBOX_TIMEOUT = 6,            /* a deadline passed; the message names what is late */
  PBOX_WORKER_LOST = 7,        /* another rank died or left; the message names it */
  PBOX_BOX_LOST = 8,           /* the box died or stopped answering */
  PBOX_MISMATCH = 9,           /* the ranks disagree; the message names the first difference */
  PBOX_VERSION_MISMATCH = 10,  /* the releases of the library and the box do not fit */
  PBOX_SYSTEM = 11,            /* the operating system refused something */
  PBOX_FORKED = 12,            /* the context belongs to the parent process */
  PBOX_CLOSED = 13,            /* this worker has left the job */
  PBOX_INTERNAL = 14
} pbox_status;

/* Type of a tensor's elements. Tensors are f32, f16 or bf16; the others are for collectives.
 *
 * All types with named values, except pbox_status, are 32-bit integers and not enums, so that every
 * compiler agrees on their size. Other values are refused with PBOX_INVALID_ARGUMENT. */
typedef int32_t pbox_dtype;
enum pbox_dtype_value {
  PBOX_F32 = 0,
  PBOX_F16 = 1,
  PBOX_BF16 = 2,
  PBOX_I32 = 3,
  PBOX_I64 = 4,
  PBOX_U8 = 5,
  PBOX_I8 = 6,
  PBOX_F64 = 7
};

/* One rank of one job. */
typedef struct pbox_context pbox_context;

/* Called on the I/O thread, once for each call that starts operations, when they have ended. It may
 * call pbox_push_pull, pbox_push_pull_many, pbox_push_pull_rows and pbox_last_error, but no
 * function that waits. */
typedef void (*pbox_callback)(void* user, uint32_t tensor_id, pbox_status status);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_BASE_H */
