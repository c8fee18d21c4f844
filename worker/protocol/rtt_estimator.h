// Retransmission time-out from measured times (Jacobson 1988; RFC 6298): srtt + 4 rttvar, between a
// floor and a cap. A sample is the time from a push to its result, so a job with slow ranks is not
// probed as if packets were lost.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace pbox::worker {

class RttEstimator {
 public:
  void sample(uint64_t time_ns) {
    PBOX_DCHECK(time_ns <= INT64_MAX);
    const auto time = static_cast<int64_t>(time_ns);
    if (!measured_) {
      smoothed_ = time;
      variation_ = time / 2;
      measured_ = true;
      return;
    }
    const int64_t error = time - smoothed_;
    smoothed_ += error / 8;
    variation_ += ((error < 0 ? -error : error) - variation_) / 4;
  }

  // Takes the path's round-trip time as a lower bound: the time from push to result is at least
  // that.
  void at_least(uint64_t time_ns) {
    if (measured_ && time_ns > smoothed_ns()) sample(time_ns);
  }

  uint64_t smoothed_ns() const { return static_cast<uint64_t>(smoothed_); }

  // Returns a value in [floor_ns, kCapNs]; before the first sample, max(floor_ns, kInitialNs).
  uint64_t timeout_ns(uint64_t floor_ns) const {
    PBOX_DCHECK(smoothed_ >= 0 && variation_ >= 0);
    if (!measured_) return std::max(floor_ns, kInitialNs);
    return std::clamp(static_cast<uint64_t>(smoothed_ + 4 * variation_), floor_ns, kCapNs);
  }

  static constexpr uint64_t kInitialNs = 20'000'000;
  static constexpr uint64_t kCapNs = 250'000'000;

 private:
  int64_t smoothed_ = 0;
  int64_t variation_ = 0;
  bool measured_ = false;
};

}  // namespace pbox::worker
