// Records when chunks passed each point between push and result, for a bounded number of chunks,
// once a caller has opened the trace. Used on the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace pbox::worker {

// All times are monotonic_ns().
struct ChunkTimes {
  uint32_t tensor = 0;
  uint32_t chunk = 0;  // id within the job
  uint32_t round = 0;
  uint32_t pipeline = 0;      // index of the box's pipeline
  uint64_t pushed_ns = 0;     // when its first packet was due; before that it waited for the window
  uint64_t sent_ns = 0;       // when its last packet left
  uint64_t answered_ns = 0;   // when the first fragment of its result arrived
  uint64_t completed_ns = 0;  // when the last fragment of its result arrived
};

class ChunkTrace {
 public:
  // Keeps chunks that are completed from now on, at most `capacity` until they are taken. 0 stops
  // the trace.
  void open(size_t chunk_count, size_t capacity) {
    active_.assign(capacity == 0 ? 0 : chunk_count, {});
    capacity_ = capacity;
    completed_.clear();
  }

  void push(const ChunkTimes& begun) {
    PBOX_DCHECK(!is_open() || begun.chunk < active_.size());
    if (is_open()) active_[begun.chunk] = begun;
  }
  // For send() and answer() the first call per chunk counts; retransmissions do not.
  void send(uint32_t chunk, uint64_t now_ns) {
    if (is_open() && active_[chunk].sent_ns == 0) active_[chunk].sent_ns = now_ns;
  }
  void answer(uint32_t chunk, uint64_t now_ns) {
    if (is_open() && active_[chunk].answered_ns == 0) active_[chunk].answered_ns = now_ns;
  }
  void complete(uint32_t chunk, uint64_t now_ns) {
    if (!is_open() || completed_.size() == capacity_) return;
    PBOX_DCHECK(chunk < active_.size());
    ChunkTimes& times = active_[chunk];
    if (times.pushed_ns == 0) return;  // it was pushed before the trace was opened
    times.completed_ns = now_ns;
    // Both times can be missing: the box may have had the chunk before all of it was sent again,
    // and a cached read needs no answer.
    if (times.answered_ns == 0) times.answered_ns = now_ns;
    if (times.sent_ns == 0) times.sent_ns = times.answered_ns;
    completed_.push_back(times);
    times = {};
  }

  // Takes out as many entries as fit, oldest first, and returns their number.
  size_t take(std::span<ChunkTimes> times) {
    const size_t count = std::min(times.size(), completed_.size());
    const auto end = completed_.begin() + static_cast<ptrdiff_t>(count);
    std::copy(completed_.begin(), end, times.begin());
    completed_.erase(completed_.begin(), end);
    return count;
  }

 private:
  bool is_open() const { return !active_.empty(); }

  size_t capacity_ = 0;
  std::vector<ChunkTimes> active_;  // indexed by chunk
  std::vector<ChunkTimes> completed_;
};

}  // namespace pbox::worker
