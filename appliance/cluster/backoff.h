// Pauses between attempts: doubled each time up to a bound, and drawn, so that boxes which lost
// etcd together do not come back together. Main thread.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/rng.h"

namespace pbox::cluster {

class Backoff {
 public:
  explicit Backoff(uint64_t seed) : rng_(seed) {}

  // In [half, whole] of 100 ms, 200 ms, ... 3.2 s.
  std::chrono::milliseconds next() {
    const double whole_ms = static_cast<double>(100u << step_);
    step_ = std::min(step_ + 1, 5u);
    return std::chrono::milliseconds(static_cast<int64_t>(whole_ms * (0.5 + rng_.unit() / 2)));
  }
  void reset() { step_ = 0; }

 private:
  Rng rng_;
  unsigned step_ = 0;
};

}  // namespace pbox::cluster
