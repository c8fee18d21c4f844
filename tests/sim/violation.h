// The exception for a promise of the product that does not hold. It is thrown where the violation
// is seen, passes through any product code in between, and ends the seed's run.
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
