// Counts a pipeline's processor cycles by phase, in one of kTurnsPerSample turns of the loop. The
// cost is negligible, so the clock is always on. Turns without work do not count.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "pipeline/observe/counters.h"

namespace pbox::pipeline {

// The phases. mark(phase) counts the time since the previous mark as time in `phase`.
enum class Phase : uint8_t {
  kReceive,       // the port's rx_burst, and the work between packets
  kAuthenticate,  // header, session, tag
  kAdd,           // slot checks, the sum
  kFinish,        // the end of a round: optimizer, conversion
  kSend,          // headers, tags, the port's tx_burst
  kCount
};

// Returns the time stamp counter, whose rate does not depend on the core's frequency.
inline uint64_t cycle_count() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
#error "no cycle counter is known for this processor"
#endif
}

// The pipeline's own core calls everything here.
class PhaseClock {
 public:
  static constexpr uint32_t kTurnsPerSample = 64;
  // A turn handles a few bursts. A longer turn was interrupted by other work on the core.
  static constexpr uint64_t kInterruptedCycles = 2'000'000;

  explicit PhaseClock(Counters& counters) : counters_(counters) { calibrate(); }

  // True if the current turn is measured.
  bool sampling() const { return sampling_; }
  // Called if the current turn is not representative: it does not count.
  void discard_turn() { is_discarded_ = true; }
  void begin_turn() {
    PBOX_DCHECK(turns_left_ > 0);
    if (--turns_left_ > 0) [[likely]]
      return;
    PBOX_DCHECK(!sampling_);
    sampling_ = true;
    is_discarded_ = false;
    turns_left_ = kTurnsPerSample;
    cycles_ = {};
    fragments_before_ = counters_.get(Counter::kAggregated);
    bytes_before_ = counters_.get(Counter::kAggregatedBytes);
    last_ = cycle_count();
  }
  void mark(Phase phase) {
    if (sampling_) [[unlikely]]
      take(phase);
  }
  void end_turn(bool worked) {
    if (sampling_) [[unlikely]]
      finish(worked);
  }

 private:
  // Measures the cycles that a mark itself takes.
  void calibrate() {
    overhead_ = UINT64_MAX;
    for (int count = 0; count < 100; ++count) {
      const uint64_t start = cycle_count();
      overhead_ = std::min(overhead_, cycle_count() - start);
    }
  }
  void take(Phase phase) {
    PBOX_DCHECK(phase < Phase::kCount);
    const uint64_t now = cycle_count();
    const uint64_t elapsed = now - std::exchange(last_, now);
    cycles_[static_cast<size_t>(phase)] += elapsed - std::min(elapsed, overhead_);
  }
  void finish(bool worked) {
    PBOX_DCHECK(counters_.get(Counter::kAggregated) >= fragments_before_);
    PBOX_DCHECK(counters_.get(Counter::kAggregatedBytes) >= bytes_before_);
    sampling_ = false;
    const uint64_t total = std::accumulate(cycles_.begin(), cycles_.end(), uint64_t{0});
    if (!worked || is_discarded_ || total > kInterruptedCycles) return;
    static_assert(static_cast<size_t>(Counter::kCyclesSend) -
                      static_cast<size_t>(Counter::kCyclesReceive) + 1 ==
                  static_cast<size_t>(Phase::kCount));
    for (size_t phase = 0; phase < cycles_.size(); ++phase) {
      counters_.add(static_cast<Counter>(static_cast<size_t>(Counter::kCyclesReceive) + phase),
                    cycles_[phase]);
    }
    counters_.add(Counter::kSampledFragments,
                  counters_.get(Counter::kAggregated) - fragments_before_);
    counters_.add(Counter::kSampledBytes, counters_.get(Counter::kAggregatedBytes) - bytes_before_);
  }

  Counters& counters_;
  std::array<uint64_t, static_cast<size_t>(Phase::kCount)> cycles_{};
  uint64_t fragments_before_ = 0;
  uint64_t bytes_before_ = 0;
  uint64_t last_ = 0;
  uint64_t overhead_ = 0;
  uint32_t turns_left_ = 1;
  bool sampling_ = false;
  bool is_discarded_ = false;
};

}  // namespace pbox::pipeline
