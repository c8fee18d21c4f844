/* libpbox: collectives of any shape, without named tensors. Included by pbox.h.
 *
 * A context with PBOX_MODE_COLLECTIVE registers no tensor. After pbox_join, operation n of a rank
 * is matched with operation n of every other rank, in the order of the calls on each context. If
 * several threads call, the application must keep their order equal on all ranks. Operations run at
 * the same time, and may complete in another order.
 *
 * If the ranks' operations n differ, because a rank has skipped a call or uses a different shape,
 * they get PBOX_MISMATCH. The message names two ranks and their operations. The job is then
 * over. */
#ifndef PBOX_COLLECTIVE_H
#define PBOX_COLLECTIVE_H

#include "pbox/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* W is the world size, `count` the number of elements as below.
 *
 * ALL_REDUCE      in, out: count. Every rank gets the ranks' values, combined by `op`.
 * REDUCE_SCATTER  in: W * count, out: count. Rank r gets the combined segment r.
 * ALL_GATHER      in: count, out: W * count. Every rank gets the segments of all ranks.
 * BROADCAST       in of rank `root`: count; out of the others: count. The root's out may be NULL,
 *                 and the others' in is not used.
 * BARRIER         No data: completes when every rank has called it. */
typedef int32_t pbox_verb;
enum pbox_verb_value {
  PBOX_ALL_REDUCE = 0,
  PBOX_REDUCE_SCATTER = 1,
  PBOX_ALL_GATHER = 2,
  PBOX_BROADCAST = 3,
  PBOX_BARRIER = 4
};

/* For ALL_REDUCE and REDUCE_SCATTER. PBOX_F16 and PBOX_BF16 are combined in f32 and rounded once.
 * Sums of integers wrap around. MEAN is for floating-point types. MIN and MAX give NaN if any value
 * is NaN. */
typedef int32_t pbox_op;
enum pbox_op_value { PBOX_OP_SUM = 0, PBOX_OP_MEAN = 1, PBOX_OP_MIN = 2, PBOX_OP_MAX = 3 };

/* Called once on the I/O thread, when the operation has ended. It must be short. It may start
 * operations, but must not wait. */
typedef void (*pbox_collective_callback)(void* user, uint64_t operation, pbox_status status);

/* Starts an operation and returns at once. Buffers belong to the library until the operation has
 * ended. `in` and `out` may be the same memory: the whole of it, or this rank's segment of the
 * larger buffer. Otherwise they must not overlap. A count of 0 is allowed; such an operation takes
 * its turn like any other. Operations of a larger `priority` are sent earlier. `callback` and
 * `operation` may be NULL; *operation is the number of the operation, for pbox_wait_collective. */
PBOX_API pbox_status pbox_collective(pbox_context* context, pbox_verb verb, const void* in,
                                     void* out, uint64_t count, pbox_dtype dtype, pbox_op op,
                                     uint32_t root, int32_t priority,
                                     pbox_collective_callback callback, void* user,
                                     uint64_t* operation);

/* Waits until the operation has ended, at most timeout_ms; 0 means options.wait_timeout_ms. After
 * PBOX_TIMEOUT, whose message names the rank that is late, the operation goes on. */
PBOX_API pbox_status pbox_wait_collective(pbox_context* context, uint64_t operation,
                                          uint32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_COLLECTIVE_H */
