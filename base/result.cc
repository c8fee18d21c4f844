#include "base/result.h"

#include <system_error>

namespace pbox {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return "ok";
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kAlreadyExists: return "already exists";
    case ErrorCode::kResourceExhausted: return "resource exhausted";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kWorkerLost: return "worker lost";
    case ErrorCode::kBoxLost: return "box lost";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kVersionMismatch: return "version mismatch";
    case ErrorCode::kSystem: return "system error";
    case ErrorCode::kForked: return "called in a forked child";
    case ErrorCode::kClosed: return "closed";
    case ErrorCode::kInternal: return "internal error";
  }
  return "unknown";
}

Error system_error(const std::string& what, int error_number) {
  return Error{ErrorCode::kSystem, what + ": " + std::generic_category().message(error_number)};
}

}  // namespace pbox
