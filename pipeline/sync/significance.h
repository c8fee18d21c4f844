// The significance of a push: how large its gradient is relative to the weights that it steps,
// |g| / |w|, compared with the pushes before it (FluentPS, CLUSTER 2019, section on dynamic PSSP).
// The pipeline's own core calls it.
#pragma once

#include <algorithm>
#include <cmath>

namespace pbox::sync {

// The sizes of a rank's push in progress, and the significance of its last complete one.
struct PushSize {
  float gradient_squares = 0, weight_squares = 0;  // sums over the fragments that have arrived
  float significance = 1;                          // the last complete push's, in [0, 1]
};

// Compares the pushes of one chunk, from all ranks.
class Significance {
 public:
  // Called when the push is complete. Sets its significance and begins the next push. This is
  // |g| / |w| divided by the mean of the pushes before, at most 1. It is 1 for the first push, and
  // if |g| / |w| is not finite, so that such a rank waits as if its gradient were large.
  void complete(PushSize& push) {
    const float ratio = std::sqrt(push.gradient_squares / push.weight_squares);
    push.gradient_squares = push.weight_squares = 0;
    push.significance = 1;
    if (!std::isfinite(ratio)) return;
    if (mean_ > 0) push.significance = std::min(1.0f, ratio / mean_);
    mean_ = mean_ > 0 ? mean_ + (ratio - mean_) / kMemory : ratio;
  }

 private:
  static constexpr float kMemory = 16;  // pushes over which the mean fades
  float mean_ = 0;
};

}  // namespace pbox::sync
