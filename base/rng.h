// A small seeded random number generator (SplitMix64; Steele, Lea, Flood, OOPSLA 2014) for jitter,
// fault plans and test data. Not for secrets. The same seed gives the same sequence on all
// machines. Not thread-safe.
#pragma once

#include <cstdint>

namespace pbox {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  // Returns a uniform integer in [0, bound); bound > 0.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }

  // Returns a uniform number in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  __extension__ using Wide = unsigned __int128;
  uint64_t state_;
};

// Returns a function that draws from Rng(seed).
inline auto seeded_draws(uint64_t seed) {
  return [rng = Rng(seed)]() mutable { return rng.next(); };
}

}  // namespace pbox
