// Framing of the control connection: 4 bytes of length, little endian, then the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::wire {

inline constexpr uint32_t kControlProtocolVersion = 2;
inline constexpr size_t kControlLengthBytes = 4;

// A framed message, or an error when it is longer than limits::kControlMessageBytesMax.
Result<std::string> frame(const google::protobuf::MessageLite& message);

// Takes bytes as they come from a stream and gives whole message bodies back. Not thread-safe.
class FrameReader {
 public:
  void append(const char* data, size_t bytes) { buffer_.append(data, bytes); }

  // The next message body; nothing if it is not all there yet; an error (after which the stream is
  // useless) if the peer announced more than the limit.
  Result<std::optional<std::string>> next();

 private:
  std::string buffer_;
};

}  // namespace pbox::wire
