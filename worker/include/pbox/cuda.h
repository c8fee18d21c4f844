/* libpbox: operations on the memory of CUDA devices. Include it beside pbox.h.
 *
 * libpbox is not linked with CUDA. It uses the libcudart that the process has loaded, and the
 * driver; CUDA 11.7 and newer. Data passes through pinned host memory, which is kept and reused. No
 * call waits for the device or for the network.
 *
 * The caller owns three streams of the device:
 *
 * stream     The one on which the inputs are computed, given to each call. Null is the default
 *            stream. It must not be captured into a graph.
 * to_host    Copies inputs to host memory, after the work queued on `stream` before the call.
 * to_device  Copies results back. It waits for the results in the order of the calls. Work that is
 *            queued behind it, or behind an event that is recorded on it, sees the result.
 *
 * Device memory belongs to the library until `to_device` has passed the call. If the operation
 * fails, `to_device` goes on. Floating-point results of a collective that have not arrived are then
 * NaN, and weights keep their last values. */
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

/* Like pbox_collective, with `in` and `out` on the device. The operation takes its turn with the
 * call, although its input is computed later. pbox_wait_collective waits until the result is in
 * host memory. PBOX_SYSTEM reports an error of CUDA. The operation may then never end on any rank:
 * leave the job. */
PBOX_API pbox_status pbox_cuda_collective(pbox_context* context, int32_t device, void* stream,
                                          pbox_verb verb, const void* in, void* out, uint64_t count,
                                          pbox_dtype dtype, pbox_op op, uint32_t root,
                                          int32_t priority, uint64_t* operation);

/* Starts an exchange of a registered tensor, like pbox_push_pull, or like pbox_init_weights if
 * initial_weights is 1. pbox_cuda_pull copies the result back. pbox_wait waits until the result is
 * in host memory. Errors are those of pbox_cuda_collective. */
PBOX_API pbox_status pbox_cuda_push(pbox_context* context, int32_t device, void* stream,
                                    uint32_t tensor_id, const void* gradient,
                                    uint32_t initial_weights);

/* Copies the result of the tensor's last pbox_cuda_push to `weights` as soon as it has arrived, and
 * after the work queued on `stream` before the call. Call it once for each push. */
PBOX_API pbox_status pbox_cuda_pull(pbox_context* context, int32_t device, void* stream,
                                    uint32_t tensor_id, void* weights);

#ifdef __cplusplus
}
#endif

#endif /* PBOX_CUDA_H */
