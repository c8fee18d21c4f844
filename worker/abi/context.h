// The context of the C ABI, and the checks that every call needs. For the files of abi/ only.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pbox/pbox.h"
#include "worker/abi/thread_error.h"
#include "worker/client.h"
#include "worker/cuda/staging.h"

struct pbox_context {
  explicit pbox_context(const pbox::worker::ClientOptions& options)
      : rank(options.rank), world_size(options.world_size), client(options) {}
  // The stagings end after the client has left its job, and before the client.
  ~pbox_context() { static_cast<void>(client.leave()); }
  const uint32_t rank;
  const uint32_t world_size;
  std::unique_ptr<pbox::worker::OperationSource> source;  // null in all programs but boxes
  pbox::worker::Client client;
  std::mutex stagings_mutex;
  std::map<int, std::unique_ptr<pbox::worker::cuda::Staging>> stagings;  // by CUDA device
};

namespace pbox::worker {

inline Error invalid_argument(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

// In c_api.cc. Read the options that a caller has filled, and make a context with them.
Result<ClientOptions> read_options(const pbox_options* options);
pbox_status create_context(const Result<ClientOptions>& options, pbox_context** context);

// Keeps the error's text for pbox_last_error, and returns its status.
inline pbox_status fail_call(pbox_context* context, const Error& error) {
  if (context != nullptr) context->client.set_last_error(error.message);
  set_thread_error(error.message);
  return static_cast<pbox_status>(error.code);
}

// Runs `function`, which returns a Status, with the checks that every call needs.
template <typename F>
pbox_status guarded(pbox_context* context, F&& function) {
  if (context == nullptr) return fail_call(nullptr, invalid_argument("context is NULL"));
  if (context->client.forked()) {
    set_thread_error("this process was forked after pbox_create; create a context of its own");
    return PBOX_FORKED;
  }
  try {
    const Status status = function(context->client);
    return status ? PBOX_OK : fail_call(context, status.error());
  } catch (const std::exception& exception) {
    return fail_call(context, {ErrorCode::kInternal, exception.what()});
  }
}

}  // namespace pbox::worker
