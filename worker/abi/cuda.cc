// Tensors on CUDA devices in the C ABI.
#include "pbox/cuda.h"

#include <string>

#include "worker/abi/collective_request.h"
#include "worker/abi/context.h"

using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;
using pbox::worker::Client;
using pbox::worker::collective_request;
using pbox::worker::guarded;
using pbox::worker::cuda::Staging;

namespace {

Result<Staging*> staging_of(pbox_context& context, int32_t device) {
  const std::lock_guard lock(context.stagings_mutex);
  const auto found = context.stagings.find(device);
  if (found != context.stagings.end()) return found->second.get();
  return Error{ErrorCode::kInvalidArgument, "CUDA device " + std::to_string(device) +
                                                " is not attached; call pbox_cuda_attach first"};
}

}  // namespace

pbox_status pbox_cuda_attach(pbox_context* context, int32_t device, void* to_host,
                             void* to_device) {
  return guarded(context, [&](Client& client) -> Status {
    const auto runtime = pbox::worker::cuda::load_runtime();
    if (!runtime) return runtime.error();
    const std::lock_guard lock(context->stagings_mutex);
    if (context->stagings.contains(device)) {
      return Error{ErrorCode::kAlreadyExists,
                   "CUDA device " + std::to_string(device) + " is attached already"};
    }
    auto made = Staging::make(**runtime, client,
                              {.device = device,
                               .to_host = to_host,
                               .to_device = to_device,
                               .rank = context->rank,
                               .world_size = context->world_size});
    if (!made) return made.error();
    context->stagings.emplace(device, std::move(*made));
    return pbox::ok_status();
  });
}

pbox_status pbox_cuda_collective(pbox_context* context, int32_t device, void* stream,
                                 pbox_verb verb, const void* in, void* out, uint64_t count,
                                 pbox_dtype dtype, pbox_op op, uint32_t root, int32_t priority,
                                 uint64_t* operation) {
  return guarded(context, [&](Client&) -> Status {
    const auto request = collective_request(verb, in, out, count, dtype, op, root, priority);
    if (!request) return request.error();
    const Result<Staging*> staging = staging_of(*context, device);
    if (!staging) return staging.error();
    const Result<uint64_t> started = (*staging)->start_collective(*request, stream);
    if (!started) return started.error();
    if (operation != nullptr) *operation = *started;
    return pbox::ok_status();
  });
}

pbox_status pbox_cuda_push(pbox_context* context, int32_t device, void* stream, uint32_t tensor_id,
                           const void* gradient, uint32_t initial_weights) {
  return guarded(context, [&](Client&) -> Status {
    const Result<Staging*> staging = staging_of(*context, device);
    if (!staging) return staging.error();
    return (*staging)->push(tensor_id, gradient, initial_weights != 0, stream);
  });
}

pbox_status pbox_cuda_pull(pbox_context* context, int32_t device, void* stream, uint32_t tensor_id,
                           void* weights) {
  return guarded(context, [&](Client&) -> Status {
    const Result<Staging*> staging = staging_of(*context, device);
    if (!staging) return staging.error();
    return (*staging)->pull(tensor_id, weights, stream);
  });
}
