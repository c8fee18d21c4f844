// Text from peers, made safe for errors and logs.
#pragma once

#include <cstddef>
#include <string>

namespace pbox::control {

inline constexpr size_t kShortTextBytes = 64;  // for names
inline constexpr size_t kReasonBytes = 300;    // for a worker's reasons

// Cuts the text to `bytes_max`, and replaces what is not printable ASCII by '?'.
inline std::string printable(std::string text, size_t bytes_max = kShortTextBytes) {
  if (text.size() > bytes_max) text.resize(bytes_max);
  for (char& character : text) {
    if (character < ' ' || character > '~') character = '?';
  }
  return text;
}

}  // namespace pbox::control
