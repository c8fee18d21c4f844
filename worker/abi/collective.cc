// The collectives of the C ABI.
#include "pbox/collective.h"

#include <string>

#include "worker/abi/context.h"

using pbox::Result;
using pbox::Status;
using pbox::worker::Client;
using pbox::worker::CollectiveRequest;
using pbox::worker::guarded;
using pbox::worker::invalid_argument;

namespace {

Status check_arguments(pbox_verb verb, pbox_dtype dtype, pbox_op op) {
  if (verb < PBOX_ALL_REDUCE || verb > PBOX_BARRIER) {
    return invalid_argument("verb " + std::to_string(verb) +
                            " is unknown: set one of PBOX_ALL_REDUCE to PBOX_BARRIER");
  }
  if (dtype < 0 || static_cast<uint32_t>(dtype) >= pbox::wire::kCollectiveDtypeCount) {
    return invalid_argument("dtype " + std::to_string(dtype) +
                            " is unknown: set one of PBOX_F32 to PBOX_F64");
  }
  if (op < PBOX_OP_SUM || op > PBOX_OP_MAX) {
    return invalid_argument("op " + std::to_string(op) +
                            " is unknown: set one of PBOX_OP_SUM to PBOX_OP_MAX");
  }
  return pbox::ok_status();
}

}  // namespace

pbox_status pbox_collective(pbox_context* context, pbox_verb verb, const void* in, void* out,
                            uint64_t count, pbox_dtype dtype, pbox_op op, uint32_t root,
                            int32_t priority, pbox_collective_callback callback, void* user,
                            uint64_t* operation) {
  return guarded(context, [&](Client& client) -> Status {
    if (Status sound = check_arguments(verb, dtype, op); !sound) return sound;
    const Result<uint64_t> started = client.start_collective(
        {.call = {.verb = static_cast<pbox::wire::Verb>(verb),
                  .combine = static_cast<pbox::wire::Combine>(op),
                  .dtype = static_cast<pbox::wire::Dtype>(dtype),
                  .count = count,
                  .root = root},
         .input = static_cast<const std::byte*>(in),
         .output = static_cast<std::byte*>(out),
         .priority = priority,
         .callback = reinterpret_cast<pbox::worker::CollectiveCallback>(callback),
         .user = user});
    if (!started) return started.error();
    if (operation != nullptr) *operation = *started;
    return pbox::ok_status();
  });
}

pbox_status pbox_wait_collective(pbox_context* context, uint64_t operation, uint32_t timeout_ms) {
  return guarded(context,
                 [&](Client& client) { return client.wait_collective(operation, timeout_ms); });
}
