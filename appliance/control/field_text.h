// Formats fields of a JOIN for error messages.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace pbox::control {

inline std::string in_quotes(const std::string& text) {
  return "'" + text + "'";
}

// Returns the shortest text that parses back to the same value, so that any difference is visible.
inline std::string number(float value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

template <typename T>
std::string number(T value) {
  return std::to_string(value);
}

}  // namespace pbox::control
