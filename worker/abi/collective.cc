// The collectives of the C ABI.
#include "pbox/collective.h"

#include "worker/abi/collective_request.h"
#include "worker/abi/context.h"

using pbox::Result;
using pbox::Status;
using pbox::worker::Client;
using pbox::worker::collective_request;
using pbox::worker::guarded;

pbox_status pbox_collective(pbox_context* context, pbox_verb verb, const void* in, void* out,
                            uint64_t count, pbox_dtype dtype, pbox_op op, uint32_t root,
                            int32_t priority, pbox_collective_callback callback, void* user,
                            uint64_t* operation) {
  return guarded(context, [&](Client& client) -> Status {
    auto request = collective_request(verb, in, out, count, dtype, op, root, priority);
    if (!request) return request.error();
    request->callback = callback;
    request->user = user;
    const Result<uint64_t> started = client.start_collective(*request);
    if (!started) return started.error();
    if (operation != nullptr) *operation = *started;
    return pbox::ok_status();
  });
}

pbox_status pbox_wait_collective(pbox_context* context, uint64_t operation, uint32_t timeout_ms) {
  return guarded(context,
                 [&](Client& client) { return client.wait_collective(operation, timeout_ms); });
}
