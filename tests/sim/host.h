// One thread of a host. It has its own clock, which may jump ahead, and it may be paused. It runs
// when it is woken and otherwise costs nothing.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/sim/event_queue.h"

namespace pbox::sim {

class Thread {
 public:
  // `turn` is called when there may be work, but never from within wake_soon() or wake_at().
  Thread(EventQueue& queue, std::function<void()> turn) : queue_(queue), turn_(std::move(turn)) {}
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  uint64_t now_ns() const { return queue_.now_ns() + clock_offset_ns_; }

  uint64_t paused_until_ns() const { return paused_until_ns_; }  // in rack time

  void wake_soon() { wake_at_rack_ns(queue_.now_ns()); }
  // Wakes the thread at this time on its own clock. Does nothing for UINT64_MAX.
  void wake_at(uint64_t local_ns) {
    if (local_ns == UINT64_MAX) return;
    wake_at_rack_ns(local_ns > clock_offset_ns_ ? local_ns - clock_offset_ns_ : 0);
  }

  void pause(uint64_t length_ns) {
    paused_until_ns_ = std::max(paused_until_ns_, queue_.now_ns() + length_ns);
  }
  void resume() {
    paused_until_ns_ = 0;
    wake_soon();
  }
  void jump(uint64_t ahead_ns) {
    clock_offset_ns_ += ahead_ns;
    wake_soon();
  }

 private:
  void wake_at_rack_ns(uint64_t due_ns) {
    due_ns = std::max({due_ns, queue_.now_ns(), paused_until_ns_});
    if (due_ns >= wakes_ns_) return;
    wakes_ns_ = due_ns;
    queue_.at(due_ns, [this, due_ns] {
      if (wakes_ns_ != due_ns) return;  // an earlier wake-up came in between
      wakes_ns_ = UINT64_MAX;
      if (paused_until_ns_ > queue_.now_ns()) return wake_soon();
      turn_();
    });
  }

  EventQueue& queue_;
  std::function<void()> turn_;
  uint64_t clock_offset_ns_ = 0;
  uint64_t paused_until_ns_ = 0;
  uint64_t wakes_ns_ = UINT64_MAX;
};

}  // namespace pbox::sim
