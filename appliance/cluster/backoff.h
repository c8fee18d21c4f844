// Pauses between attempts: exponential backoff with random jitter, so that boxes that lost etcd
// together do not all reconnect at the same moment. Main thread.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/rng.h"

namespace pbox::cluster {

class Backoff {
 public:
  explicit Backoff(uint64_t seed) : rng_(seed) {}

  // Returns a random pause between half and all of the current step. The steps are 100 ms, 200 ms,
  // ... 3.2 s.
  std::chrono::milliseconds next() {
    PBOX_DCHECK(step_ <= 5);
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
