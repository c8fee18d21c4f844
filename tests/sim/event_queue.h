// Schedules all events. Simulated time moves from event to event and stands still within one.
// Events of the same time run in the order in which they were scheduled, so a run depends on its
// seed alone.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace pbox::sim {

class EventQueue {
 public:
  static constexpr uint64_t kBeginNs = 1'000'000'000;

  // Simulated time of the rack. No host's clock shows it.
  uint64_t now_ns() const { return now_ns_; }

  // A time in the past means now.
  void at(uint64_t due_ns, std::function<void()> happens) {
    heap_.push({due_ns < now_ns_ ? now_ns_ : due_ns, next_sequence_++, std::move(happens)});
  }
  void after(uint64_t wait_ns, std::function<void()> happens) {
    at(now_ns_ + wait_ns, std::move(happens));
  }

  // Runs the next event. Returns false if there is none.
  bool step() {
    if (heap_.empty()) return false;
    // The heap exposes its first entry as a constant only, but the entry is removed right
    // afterwards.
    auto happens = std::move(const_cast<Event&>(heap_.top()).happens);
    now_ns_ = heap_.top().due_ns;
    heap_.pop();
    ++count_;
    happens();
    return true;
  }

  uint64_t count() const { return count_; }

 private:
  struct Event {
    uint64_t due_ns;
    uint64_t sequence;
    std::function<void()> happens;
    // the heap's "less" means that the event happens later
    bool operator<(const Event& other) const {
      if (due_ns != other.due_ns) return due_ns > other.due_ns;
      return sequence > other.sequence;
    }
  };

  std::priority_queue<Event> heap_;
  uint64_t now_ns_ = kBeginNs;
  uint64_t next_sequence_ = 0;
  uint64_t count_ = 0;
};

}  // namespace pbox::sim
