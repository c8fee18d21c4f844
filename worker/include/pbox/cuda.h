/* libpbox: operations on the memory of CUDA devices. Include it beside pbox.h.
 *
 * libpbox is not linked with CUDA. It uses the libcudart that the process has loaded, and the
 * driver; CUDA 11.7 and newer. Data passes through pinned host memory, which is kept and used
 * again. No call waits for the device or for the network.
 *
 * The caller owns three streams of the device:
 *
 * stream     The one on which the inputs are computed, given to each call. Null is the default
 *            stream. It must not be captured into a graph.
 * to_host    Copies inputs to host memory, behind what `stream` holds at the time of the call.
 * to_device  Copies results back. It waits for each result, behind those of earlier calls. Work
 *            that is queued behind it, or behind an event that is recorded on it, sees the result.
 *
 * Device memory belongs to the library until `to_device` has passed the call. If the operation
 * fails, `to_device` goes on: floating-point results of a collective that had not come are NaN
 * then, and weights stay the last ones. */
#ifndef PBOX_CUDA_H
#define PBOX_CUDA_H

#include "pbox/base.h"
#include "pbox/collective.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prepares the use of a device, once for each context and device. The streams outlive the context.
 * Create them without synchronization with the default stream. PBOX_NOT_FOUND: the process has
 * loaded no libcudart, or there is no driver. */
PBOX_API pbox_status pbox_cuda_attach(pbox_context* context, int32_t device, void* to_host,
                                      void* to_device);

/* As pbox_collective, with `in` and `out` on the device. The operation takes its turn with the
 * call, although its input is computed later. pbox_wait_collective waits until the result is in
 * host memory. After PBOX_SYSTEM, which is an error of CUDA, the operation may be unfinished for
 * all ranks: leave the job. */
PBOX_API pbox_status pbox_cuda_collective(pbox_context* context, int32_t device, void* stream,
                                          pbox_verb verb, const void* in, void* out, uint64_t count,
                                          pbox_dtype dtype, pbox_op op, uint32_t root,
                                          int32_t priority, uint64_t* operation);

/* Starts an exchange of a registered tensor: pbox_push_pull, or with initial_weights 1
 * pbox_init_weights, whose result pbox_cuda_pull copies back. pbox_wait waits until the result is
 * in host memory. Errors as in pbox_cuda_collective. */
PBOX_API pbox_status pbox_cuda_push(pbox_context* context, int32_t device, void* stream,
                                    uint32_t tensor_id, const void* gradient,
                                    uint32_t initial_weights);

/* Copies the result of the tensor's last pbox_cuda_push to `weights` as soon as it has come, behind
 * what `stream` holds at the time of the call. Once for each push. */
PBOX_API pbox_status pbox_cuda_pull(pbox_context* context, int32_t device, void* stream,
                                    uint32_t tensor_id, void* weights);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_CUDA_H */
