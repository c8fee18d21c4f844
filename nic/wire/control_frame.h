// Framing of the control connection: 4 bytes of length, little endian, followed by the message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::wire {

inline constexpr size_t kControlLengthBytes = 4;

// Returns the message with its length in front, or kResourceExhausted if it is longer than
// limits::kControlMessageBytesMax. Pure; any thread may call it.
Result<std::string> frame(const google::protobuf::MessageLite& message);

// Collects bytes as they arrive from a stream and returns whole message bodies. Not thread-safe.
// Holds at most one incomplete message and the bytes appended since the last next().
class FrameReader {
 public:
  void append(const char* data, size_t bytes) { buffer_.append(data, bytes); }

  // Returns the next message body, or nullopt if it is incomplete. Returns an error if the peer
  // announced a message above the limit; the stream cannot be used after that.
  Result<std::optional<std::string>> next();

 private:
  std::string buffer_;
};

}  // namespace pbox::wire
