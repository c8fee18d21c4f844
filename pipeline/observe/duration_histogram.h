// A histogram of durations: one thread writes, any thread reads, without locks.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/counter.h"

namespace pbox::pipeline {

// Bucket bounds double, from 8 us to half a minute. Quantiles are thus exact within a factor of
// two, and the bucket of a duration is found by counting bits.
class DurationHistogram {
 public:
  static constexpr size_t kBucketCount = 24;  // the last bucket has no upper bound
  static constexpr uint32_t kFirstBoundBits = 13;
  // Returns the largest duration of a bucket other than the last, in nanoseconds.
  static constexpr uint64_t bound_ns(size_t bucket) {
    return uint64_t{1} << (kFirstBoundBits + bucket);
  }

  // Counts a duration. Only the writing thread calls it.
  void add(uint64_t duration_ns) {
    const uint64_t below = duration_ns == 0 ? 0 : duration_ns - 1;  // bounds are inclusive
    const auto bits = static_cast<size_t>(std::bit_width(below >> kFirstBoundBits));
    PBOX_DCHECK(bits >= kBucketCount - 1 || duration_ns <= bound_ns(bits));
    counts_[bits < kBucketCount ? bits : kBucketCount - 1].add(1);
    sum_ns_.add(duration_ns);
  }

  // Return the number of durations in a bucket, and the sum of all durations. Any thread.
  uint64_t count(size_t bucket) const {
    PBOX_DCHECK(bucket < kBucketCount);
    return counts_[bucket].get();
  }
  uint64_t sum_ns() const { return sum_ns_.get(); }

 private:
  std::array<SingleWriterCounter, kBucketCount> counts_;
  SingleWriterCounter sum_ns_;
};

}  // namespace pbox::pipeline
