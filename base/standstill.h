// The bound by which a loop detects that its program has not run for a while: it was stopped, its
// virtual machine was paused, or other programs had the CPU. The program must not conclude from
// that time that its peers are late.
#pragma once

#include <cstdint>
#include <ctime>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox {

// If a loop turns at least ten times a second, and two of its turns are further apart than this,
// the program did not run in between.
inline constexpr uint64_t kStandstillNs = kNanosPerSecond;

// Measures the time between a thread's turns, and how much of it the thread itself has worked.
// Belongs to the thread that makes it.
class TurnClock {
 public:
  struct Turn {
    uint64_t gap_ns = 0;    // since the turn before
    bool was_busy = false;  // the thread had the CPU for most of that time
  };
  Turn next(uint64_t now_ns) {
    PBOX_CHECK(now_ns >= turned_ns_);
    const uint64_t gap_ns = now_ns - std::exchange(turned_ns_, now_ns);
    const uint64_t cpu_ns = thread_cpu_ns();
    const uint64_t worked_ns = cpu_ns - std::exchange(cpu_ns_, cpu_ns);
    return {gap_ns, 2 * worked_ns > gap_ns};
  }

 private:
  static uint64_t thread_cpu_ns() {
    timespec used{};
    PBOX_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) == 0);
    return static_cast<uint64_t>(used.tv_sec) * kNanosPerSecond +
           static_cast<uint64_t>(used.tv_nsec);
  }

  uint64_t turned_ns_ = monotonic_ns();
  uint64_t cpu_ns_ = 0;  // the first turn counts all that the thread has worked before
};

}  // namespace pbox
