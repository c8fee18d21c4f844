// Schedules all events. Simulated time moves from event to event and stands still within one.
// Events of the same time run in the order in which they were scheduled, so a run depends on its
// seed alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace pbox::sim {

class EventQueue {
 public:
  static constexpr uint64_t kBeginNs = 1'000'000'000;

  // Returns the simulated time of the rack. Hosts do not see it: they have clocks of their own.
  uint64_t now_ns() const { return now_ns_; }

  // Schedules the event for `due_ns`, or for now if that time has passed.
  void at(uint64_t due_ns, std::function<void()> happens) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(happens_.size()));
      happens_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    happens_[place] = std::move(happens);
    heap_.push({std::max(due_ns, now_ns_), next_sequence_++, place});
  }
  void after(uint64_t wait_ns, std::function<void()> happens) {
    at(now_ns_ + wait_ns, std::move(happens));
  }

  // Runs the next event. Returns false if there is none.
  bool step() {
    if (heap_.empty()) return false;
    const Event event = heap_.top();
    heap_.pop();
    now_ns_ = event.due_ns;
    ++count_;
    const auto happens = std::exchange(happens_[event.place], nullptr);
    free_.push_back(event.place);
    happens();
    return true;
  }

  uint64_t count() const { return count_; }

 private:
  struct Event {
    uint64_t due_ns;
    uint64_t sequence;
    uint32_t place;  // in happens_
    // the heap's "less" means that the event happens later
    bool operator<(const Event& other) const {
      if (due_ns != other.due_ns) return due_ns > other.due_ns;
      return sequence > other.sequence;
    }
  };

  std::priority_queue<Event> heap_;
  std::vector<std::function<void()>> happens_;  // outside of the heap, which moves its entries
  std::vector<uint32_t> free_;                  // free places in happens_
  uint64_t now_ns_ = kBeginNs;
  uint64_t next_sequence_ = 0;
  uint64_t count_ = 0;
};

}  // namespace pbox::sim
