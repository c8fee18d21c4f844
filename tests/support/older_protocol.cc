#include "tests/support/older_protocol.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace pbox::test {
namespace {

uint64_t take_varint(const std::string& bytes, size_t& at) {
  uint64_t value = 0;
  for (uint32_t shift = 0; shift < 64; shift += 7) {
    if (at >= bytes.size()) throw std::runtime_error("the message ends within a number");
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
  throw std::runtime_error("a number in the message is too long");
}

void put_varint(uint64_t value, std::string& bytes) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

}  // namespace

OlderProtocol::OlderProtocol(const std::string& path) {
  std::ifstream file(path);
  std::string message;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string type, name, sign;
    words >> type;
    if (type == "repeated" || type == "optional") words >> type;
    words >> name >> sign;
    if (line.rfind("message ", 0) == 0) {
      message = name;
      messages_[message];
    } else if (uint64_t number = 0; sign == "=" && words >> number) {
      messages_[message][number] = type;
    }
  }
  if (messages_.empty()) throw std::runtime_error("no definitions in " + path);
}

std::string OlderProtocol::forget_new_fields(const std::string& message,
                                             const std::string& bytes) const {
  const Fields& fields = messages_.at(message);
  std::string kept;
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const uint64_t key = take_varint(bytes, at);
    const uint64_t kind = key & 7;
    size_t length = 0;
    if (kind == 0) take_varint(bytes, at);
    if (kind == 1) length = 8;
    if (kind == 2) length = take_varint(bytes, at);
    if (kind == 5) length = 4;
    if (length > bytes.size() - at) throw std::runtime_error("the message ends within a field");
    at += length;
    const auto known = fields.find(key >> 3);
    if (known == fields.end()) continue;
    if (kind == 2 && messages_.contains(known->second)) {
      const std::string inner = forget_new_fields(known->second, bytes.substr(at - length, length));
      put_varint(key, kept);
      put_varint(inner.size(), kept);
      kept += inner;
    } else {
      kept.append(bytes, begin, at - begin);
    }
  }
  return kept;
}

}  // namespace pbox::test
