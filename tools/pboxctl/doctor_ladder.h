// The search for the largest packet that passes. Each step, a ladder, sends many sizes at once, its
// rungs. The next ladder lies between the largest size that came back and the smallest that did
// not. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace pboxctl {

inline constexpr uint32_t kRungUnitBytes = 4;  // payloads of f32

// The known bounds of the payload size, in bytes: sizes up to `passes` pass, `fails` does not. Both
// are multiples of kRungUnitBytes, and passes < fails.
struct Bracket {
  uint32_t passes = 0;
  uint32_t fails = 0;

  bool closed() const { return fails - passes <= kRungUnitBytes; }
};

// Returns at most `count` sizes strictly between the bounds, ascending and evenly spaced; none if
// the bracket is closed.
std::vector<uint32_t> rungs(const Bracket& bracket, uint32_t count);

// Returns the bounds after `sizes` were tried; came_back[i] belongs to sizes[i]. A size that came
// back is ignored if a smaller one did not, so that a lossy path does not look wide.
Bracket narrow(const Bracket& bracket, const std::vector<uint32_t>& sizes,
               const std::vector<bool>& came_back);

}  // namespace pboxctl
