// Chunks that wait for the window, ordered strictly by priority (descending), then by sequence
// (ascending). See P3, section 4. The comparator published with P3 orders by priority alone, so
// chunks of equal priority overtake each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include "base/check.h"

namespace pbox::worker {

class SendQueue {
 public:
  void push(uint32_t chunk, int32_t priority) { heap_.push({priority, next_sequence_++, chunk}); }
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  // The queue must not be empty for these three.
  uint32_t top() const {
    PBOX_DCHECK(!heap_.empty());
    return heap_.top().chunk;
  }
  int32_t top_priority() const {
    PBOX_DCHECK(!heap_.empty());
    return heap_.top().priority;
  }
  void pop() {
    PBOX_DCHECK(!heap_.empty());
    heap_.pop();
  }

 private:
  struct Entry {
    int32_t priority;
    uint64_t sequence;
    uint32_t chunk;
    bool operator<(const Entry& other) const {  // the "lesser" entry leaves later
      if (priority != other.priority) return priority < other.priority;
      return sequence > other.sequence;
    }
  };
  std::priority_queue<Entry> heap_;
  uint64_t next_sequence_ = 0;
};

}  // namespace pbox::worker
