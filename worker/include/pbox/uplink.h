/* libpbox: for boxes that send the sums of their ranks to another box. For boxes only, and not in
 * libpbox.so. A box is then a rank of that box, with one context for each part of the job there. */
#ifndef PBOX_UPLINK_H
#define PBOX_UPLINK_H

#include "pbox/pbox.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The settings of a rank that is a box, beside pbox_options. */
typedef struct pbox_uplink {
  /* The context's tensors are part `part` of `parts` of the job, all of which are on the box that
   * `box` names. Every rank must cut the job alike. */
  uint32_t part;
  uint32_t parts;
  uint32_t workers; /* summed by this rank, at least 1; means divide by the total of all ranks */
} pbox_uplink;

/* Like pbox_create, for a rank that is a box; not with PBOX_MODE_COLLECTIVE. The library keeps no
 * copy of results for recovery, because the caller's outputs serve as copies. So the caller leaves
 * each output unchanged until the next operation on the tensor is done. In PBOX_MODE_AGGREGATE all
 * operations on a tensor have the same output. In PBOX_MODE_OPTIMIZE two outputs take turns. The
 * input is another buffer. */
pbox_status pbox_create_uplink(const pbox_options* options, const pbox_uplink* uplink,
                               pbox_context** context);

/* Asks the box how many pipelines it has, and stores the number in *count: 1 if the box is in a
 * cluster or does not report it. Waits at most options.join_timeout_ms. Only before pbox_join. */
pbox_status pbox_box_pipelines(pbox_context* context, uint32_t* count);

/* Stores the number of workers of all ranks in *count. Only after pbox_join. */
pbox_status pbox_all_workers(pbox_context* context, uint32_t* count);

/* A source of operations for the I/O thread, which alone calls the functions, with `user`. */
typedef struct pbox_source {
  void* user;
  int fd; /* an eventfd; the I/O thread reads it, and wakes when it is written to */
  /* Takes the next operation, with the arguments of pbox_push_pull; returns 0 if there is none. */
  int (*next)(void* user, uint32_t* tensor_id, const void** input, void** output);
  /* The I/O thread is about to wait for fd. Returns 0 if it must call next() again first. */
  int (*may_sleep)(void* user);
  void (*done)(void* user, uint32_t tensor_id);
  /* The job is over for this rank. Called once; nothing else is called afterwards. */
  void (*failed)(void* user, pbox_status status);
} pbox_source;

/* From now on operations come from `source` alone, which is copied. No operation may be in flight.
 * Only after pbox_join. */
pbox_status pbox_run_source(pbox_context* context, const pbox_source* source);

/* Like pbox_leave, for a box whose part of the job has failed. Ranks of other boxes that wait for
 * this one are told `reason`. */
pbox_status pbox_leave_because(pbox_context* context, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_UPLINK_H */
