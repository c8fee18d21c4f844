// How significant a push is: how large its gradient is beside the weights that it steps, |g| / |w|,
// compared with the pushes before it (FluentPS, CLUSTER 2019, section on dynamic PSSP). A value
// without I/O; the pipeline's own core calls it.
#pragma once

#include <algorithm>
#include <cmath>

namespace pbox::sync {

// The sizes of a rank's push in progress, and the significance of its last complete one.
struct PushSize {
  float gradient_squares = 0, weight_squares = 0;  // sums over the fragments that have arrived
  float significance = 1;                          // the last complete push's, in [0, 1]
};

// The pushes of a chunk, of all ranks.
class Significance {
 public:
  // The push is complete. Sets its significance, which is its |g| / |w| as a fraction of the mean
  // of the pushes before it, at most 1, and begins the next push. The first push has 1, and so has
  // one whose ratio is no number: such a rank waits as if the gradient were large.
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
