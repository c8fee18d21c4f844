#include "nic/wire/control_frame.h"

#include <cstring>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::wire {
namespace {

std::string too_long(uint64_t bytes) {
  return "a control message of " + std::to_string(bytes) + " bytes exceeds the limit of " +
         std::to_string(limits::kControlMessageBytesMax) +
         "; declare fewer tensors or larger chunks";
}

}  // namespace

Result<std::string> frame(const google::protobuf::MessageLite& message) {
  const size_t bytes = message.ByteSizeLong();
  if (bytes > limits::kControlMessageBytesMax) {
    return Error{ErrorCode::kResourceExhausted, too_long(bytes)};
  }
  const auto length = static_cast<uint32_t>(bytes);
  std::string framed(kControlLengthBytes, '\0');
  std::memcpy(framed.data(), &length, sizeof(length));
  message.AppendToString(&framed);
  PBOX_CHECK(framed.size() == kControlLengthBytes + bytes);
  return framed;
}

Result<std::optional<std::string>> FrameReader::next() {
  if (buffer_.size() < kControlLengthBytes) return std::optional<std::string>();
  uint32_t length = 0;
  std::memcpy(&length, buffer_.data(), sizeof(length));
  if (length > limits::kControlMessageBytesMax) {
    return Error{ErrorCode::kInvalidArgument, too_long(length)};
  }
  if (buffer_.size() < kControlLengthBytes + length) return std::optional<std::string>();
  std::optional<std::string> body = buffer_.substr(kControlLengthBytes, length);
  PBOX_CHECK(body->size() == length);
  buffer_.erase(0, kControlLengthBytes + length);
  return body;
}

}  // namespace pbox::wire
