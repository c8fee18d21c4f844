// Names with wildcards.
#pragma once

#include <cstddef>
#include <string_view>

namespace pbox {

// Returns whether `text` has the form of `glob`, in which * stands for any bytes and ? for one.
// After a mismatch only the last * can take one more byte, so this takes at most glob.size() x
// text.size() steps.
constexpr bool matches_glob(std::string_view glob, std::string_view text) {
  size_t at = 0, read = 0;
  size_t star = std::string_view::npos, star_read = 0;
  while (read < text.size()) {
    if (at < glob.size() && glob[at] == '*') {
      star = at++;
      star_read = read;
    } else if (at < glob.size() && (glob[at] == '?' || glob[at] == text[read])) {
      ++at;
      ++read;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      read = ++star_read;
    } else {
      return false;
    }
  }
  while (at < glob.size() && glob[at] == '*') ++at;
  return at == glob.size();
}

}  // namespace pbox
