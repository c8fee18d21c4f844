// Result<T> holds a value, or an Error that says what failed and what to do about it. Set-up and
// control code return it. The data path never does: it counts and drops.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace pbox {

// Values are stable: they appear on the control connection and in the C ABI (pbox_status).
enum class ErrorCode : int {
  kOk = 0,
  kInvalidArgument = 1,
  kNotFound = 2,
  kAlreadyExists = 3,
  kResourceExhausted = 4,
  kUnavailable = 5,
  kTimeout = 6,
  kWorkerLost = 7,
  kBoxLost = 8,
  kMismatch = 9,
  kVersionMismatch = 10,
  kSystem = 11,
  kForked = 12,
  kClosed = 13,
  kInternal = 14,
};

// Returns words for a message, such as "not found"; "unknown" for a value outside the enum.
const char* to_string(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // names the object, the wrong value and the remedy
};

// Returns a kInvalidArgument error.
inline Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

// Returns a kSystem error for an errno value, with the message "<what>: <text of the errno>".
Error system_error(const std::string& what, int error_number);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  // The value, if ok(). Aborts otherwise.
  T& value() {
    PBOX_CHECK(ok());
    return std::get<T>(state_);
  }
  const T& value() const {
    PBOX_CHECK(ok());
    return std::get<T>(state_);
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // The error, if not ok(). Aborts otherwise.
  const Error& error() const {
    PBOX_CHECK(!ok());
    return std::get<Error>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() {
  return Status(Unit{});
}

}  // namespace pbox
