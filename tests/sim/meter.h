// The CPU time that the control threads of all boxes take, which simulated time does not show.
#pragma once

#include <ctime>

#include "base/clock.h"

namespace pbox::sim {

class Meter {
 public:
  // Begins to count. A meter is off at first, because reading the clock takes time.
  void turn_on() { is_on_ = true; }

  // Runs some work of a control thread. Nested work counts once.
  template <typename Work>
  decltype(auto) run(const Work& work) {
    const Span span(*this);
    return work();
  }
  uint64_t ns() const { return ns_; }

 private:
  struct Span {
    explicit Span(Meter& its) : meter(its), counts(its.is_on_ && its.depth_++ == 0) {
      if (counts) begin_ns = now_ns();
    }
    ~Span() {
      if (meter.is_on_) --meter.depth_;
      if (counts) meter.ns_ += now_ns() - begin_ns;
    }
    static uint64_t now_ns() {
      timespec used{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
      return static_cast<uint64_t>(used.tv_sec) * kNanosPerSecond +
             static_cast<uint64_t>(used.tv_nsec);
    }
    Meter& meter;
    const bool counts;
    uint64_t begin_ns = 0;
  };

  bool is_on_ = false;
  uint32_t depth_ = 0;
  uint64_t ns_ = 0;
};

}  // namespace pbox::sim
