// Bytes as text, and text from hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace pbox::test {

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string from_hexadecimal(const std::string& text) {
  if (text.size() % 2 != 0)
    throw std::runtime_error("hexadecimal text has an odd number of digits");
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(at, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace pbox::test
