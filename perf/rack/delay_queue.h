// One direction of a long cable: frames leave in the order in which they arrived, each after the
// delay and a random jitter, and some are lost. The class does no I/O.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/check.h"

namespace pbox::perf {

struct PathQuality {
  uint64_t delay_ns = 0;
  uint64_t jitter_ns = 0;  // on top of the delay: uniform from 0 to this
  double loss = 0;         // probability that a frame is lost, in [0, 1]
};

class DelayQueue {
 public:
  DelayQueue(const PathQuality& quality, uint64_t seed) : quality_(quality), random_(seed) {}

  // Takes a copy of the frame, or loses it.
  void push(std::span<const std::byte> frame, uint64_t now_ns) {
    if (quality_.loss > 0 && std::bernoulli_distribution(quality_.loss)(random_)) return;
    uint64_t due_ns = now_ns + quality_.delay_ns;
    if (quality_.jitter_ns > 0) {
      due_ns += std::uniform_int_distribution<uint64_t>(0, quality_.jitter_ns)(random_);
    }
    if (!frames_.empty()) due_ns = std::max(due_ns, frames_.back().due_ns);
    frames_.push_back({due_ns, {frame.begin(), frame.end()}});
  }

  // Returns when the first frame is due; null if there is no frame.
  std::optional<uint64_t> due_ns() const {
    if (frames_.empty()) return std::nullopt;
    return frames_.front().due_ns;
  }
  // Returns how many frames are due, at most `limit`.
  size_t due(uint64_t now_ns, size_t limit) const {
    size_t count = 0;
    while (count < std::min(limit, frames_.size()) && frames_[count].due_ns <= now_ns) ++count;
    return count;
  }
  std::span<std::byte> frame(size_t index) { return frames_.at(index).bytes; }
  void pop(size_t count) {
    PBOX_CHECK(count <= frames_.size());
    frames_.erase(frames_.begin(), frames_.begin() + static_cast<ptrdiff_t>(count));
  }

 private:
  struct Frame {
    uint64_t due_ns;
    std::vector<std::byte> bytes;
  };

  PathQuality quality_;
  std::mt19937_64 random_;
  std::deque<Frame> frames_;
};

}  // namespace pbox::perf
