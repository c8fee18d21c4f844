// Removes from messages of the control protocol the fields that an older version does not know.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace pbox::test {

class OlderProtocol {
 public:
  // Reads the definitions of a .proto file.
  explicit OlderProtocol(const std::string& path);

  // Returns the bytes of the message with only the fields that the definitions have, at every
  // level. Throws if the bytes are not a message.
  std::string forget_new_fields(const std::string& message, const std::string& bytes) const;

 private:
  using Fields = std::map<uint64_t, std::string>;  // by number: the type
  std::map<std::string, Fields> messages_;
};

}  // namespace pbox::test
