// A promise that was broken. Thrown where it is seen, through whatever product code stands between:
// the seed ends there.
#pragma once

#include <stdexcept>
#include <string>

namespace pbox::sim {

class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `text` is made only when it is needed: a function without arguments that gives a string.
template <typename Text>
void require(bool holds, const Text& text) {
  if (holds) [[likely]]
    return;
  if constexpr (requires { std::string(text()); }) {
    throw Violation(text());
  } else {
    throw Violation(text);
  }
}

}  // namespace pbox::sim
