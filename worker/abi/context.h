// The context of the C ABI, and the checks that every call needs. For the files of abi/ only.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "pbox/pbox.h"
#include "worker/abi/thread_error.h"
#include "worker/client.h"

struct pbox_context {
  explicit pbox_context(pbox::worker::ClientOptions options) : client(std::move(options)) {}
  pbox::worker::Client client;
};

namespace pbox::worker {

inline Error invalid_argument(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

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
