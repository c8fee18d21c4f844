// The search for the largest packet that passes: many sizes are sent at once, a rung each, and the
// next ladder stands between the largest that came back and the smallest that did not. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace pboxctl {

inline constexpr uint32_t kRungUnitBytes = 4;  // payloads of f32

// What is known of payload sizes, in bytes: all up to `passes` do, `fails` does not. Multiples of
// kRungUnitBytes, passes < fails.
struct Bracket {
  uint32_t passes = 0;
  uint32_t fails = 0;

  bool closed() const { return fails - passes <= kRungUnitBytes; }
};

// At most `count` sizes strictly between the two, ascending, evenly spaced; none when closed.
std::vector<uint32_t> rungs(const Bracket& bracket, uint32_t count);

// What is known after `sizes` were tried; came_back[i] belongs to sizes[i]. A size that came back
// above one that did not counts for nothing: a path that is only lossy must not look wide.
Bracket narrow(const Bracket& bracket, const std::vector<uint32_t>& sizes,
               const std::vector<bool>& came_back);

}  // namespace pboxctl
