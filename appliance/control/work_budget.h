// How much of the control thread one connection may take: a burst at once, and a share of the time
// in the long run (a leaky bucket). A connection that has used it up is not read from for a while,
// so that no peer keeps the others waiting. It is a value without a clock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::control {

class WorkBudget {
 public:
  static constexpr uint64_t kBurstNs = kNanosPerMilli;
  static constexpr uint64_t kShare = 4;  // one part in kShare of the time
  // Opening a large job takes seconds, which are charged to the rank that joins last. The box must
  // not stop hearing that rank for long.
  static constexpr uint64_t kPauseMaxNs = 250 * kNanosPerMilli;

  // Charges `spent_ns`, the time that the peer's messages took up to now.
  void charge(uint64_t now_ns, uint64_t spent_ns) {
    const uint64_t drained_ns = (now_ns - std::min(now_ns, charged_ns_)) / kShare;
    level_ns_ -= std::min(level_ns_, drained_ns);
    level_ns_ = std::min(level_ns_ + spent_ns, kBurstNs + kPauseMaxNs / kShare);
    charged_ns_ = now_ns;
    PBOX_CHECK(pause_ns() <= kPauseMaxNs);
  }

  // Returns the time from the last charge() until the box may read from the peer again; 0 for at
  // once.
  uint64_t pause_ns() const { return level_ns_ <= kBurstNs ? 0 : (level_ns_ - kBurstNs) * kShare; }

 private:
  uint64_t level_ns_ = 0;
  uint64_t charged_ns_ = 0;
};

}  // namespace pbox::control
