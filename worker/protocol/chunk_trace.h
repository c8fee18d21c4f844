// When chunks passed which point of their way: kept only once somebody has asked for it, and no
// more of it than there is room for. The I/O thread's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace pbox::worker {

// All times as monotonic_ns().
struct ChunkTimes {
  uint32_t tensor = 0;
  uint32_t chunk = 0;  // of the job
  uint32_t round = 0;
  uint32_t pipeline = 0;      // of the box
  uint64_t pushed_ns = 0;     // its first packet was due: it had waited for the window
  uint64_t sent_ns = 0;       // its last packet left
  uint64_t answered_ns = 0;   // the first part of its result was here
  uint64_t completed_ns = 0;  // the last one was
};

class ChunkTrace {
 public:
  // Keeps what is completed from now on, at most `capacity` at a time; 0: nothing.
  void open(size_t chunk_count, size_t capacity) {
    under_way_.assign(capacity == 0 ? 0 : chunk_count, {});
    capacity_ = capacity;
    completed_.clear();
  }

  void push(const ChunkTimes& begun) {
    if (is_open()) under_way_[begun.chunk] = begun;
  }
  // Of these, the first counts: what is sent again is no news.
  void send(uint32_t chunk, uint64_t now_ns) {
    if (is_open() && under_way_[chunk].sent_ns == 0) under_way_[chunk].sent_ns = now_ns;
  }
  void answer(uint32_t chunk, uint64_t now_ns) {
    if (is_open() && under_way_[chunk].answered_ns == 0) under_way_[chunk].answered_ns = now_ns;
  }
  void complete(uint32_t chunk, uint64_t now_ns) {
    if (!is_open() || completed_.size() == capacity_) return;
    ChunkTimes& times = under_way_[chunk];
    if (times.pushed_ns == 0) return;  // before the trace
    times.completed_ns = now_ns;
    // The box may have had it before all of it was sent again, and a cached read needs no answer.
    if (times.answered_ns == 0) times.answered_ns = now_ns;
    if (times.sent_ns == 0) times.sent_ns = times.answered_ns;
    completed_.push_back(times);
    times = {};
  }

  // Takes out as many as there is room for, oldest first, and returns how many.
  size_t take(std::span<ChunkTimes> times) {
    const size_t count = std::min(times.size(), completed_.size());
    const auto end = completed_.begin() + static_cast<ptrdiff_t>(count);
    std::copy(completed_.begin(), end, times.begin());
    completed_.erase(completed_.begin(), end);
    return count;
  }

 private:
  bool is_open() const { return !under_way_.empty(); }

  size_t capacity_ = 0;
  std::vector<ChunkTimes> under_way_;  // by chunk
  std::vector<ChunkTimes> completed_;
};

}  // namespace pbox::worker
