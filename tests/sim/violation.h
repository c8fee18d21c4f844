// A broken promise. It is thrown where it is seen, through any product code in between, and ends
// the seed's run.
#pragma once

#include <stdexcept>
#include <string>

namespace pbox::sim {

class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `text` is a function without arguments that returns a string. It is called only on a violation.
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
