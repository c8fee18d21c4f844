// The order in which the lanes of all parts of a job send, since they share this host's cable: the
// lane with the most urgent packet first, and of equally urgent lanes that of the lowest part. A
// lane whose next packets are more urgent than those of the next lane keeps its turn. A lane that
// its port or its window blocks gives up its turn, so that the cable does not idle.
//
// The order is the same on every rank. Otherwise ranks would fill their windows with different
// chunks of a tensor, each of which waits on the box for the ranks that push it later.
//
// The class does no I/O. It is used on the I/O thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pbox::worker {

class SendTurns {
 public:
  struct Lane {
    size_t part = 0;
    uint32_t lane = 0;
    // Priority of the next packet; nullopt if there seems to be none.
    std::optional<int32_t> priority = {};
  };

  // Begins a pass over the lanes, which add() names in the order of the parts.
  void begin() { lanes_.clear(); }
  void add(const Lane& lane) { lanes_.push_back(lane); }

  // Calls `send(lane)` for every lane, most urgent first. It sends a burst and returns the priority
  // of what the lane could send next; nullopt if the lane is blocked or done. A pass has at most
  // twice as many bursts as lanes, because packets that arrive must not wait for long.
  template <typename Send>
  void run(const Send& send) {
    if (lanes_.size() > 1) sort();
    PBOX_DCHECK(lanes_.empty() || !(lanes_.front().priority < lanes_.back().priority));
    size_t extra_bursts = lanes_.size();
    for (size_t index = 0; index < lanes_.size(); ++index) {
      std::optional<int32_t> next = send(lanes_[index]);
      const bool is_last = index + 1 == lanes_.size();
      while (next && !is_last && lanes_[index + 1].priority < next && extra_bursts > 0) {
        --extra_bursts;
        next = send(lanes_[index]);
      }
    }
  }

 private:
  // Keeps the order of equals. Sorts by insertion, which allocates nothing: there are few lanes,
  // and most have the same priority.
  void sort() {
    PBOX_DCHECK(!lanes_.empty());
    for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
      const auto place =
          std::upper_bound(lanes_.begin(), lane, *lane,
                           [](const Lane& a, const Lane& b) { return a.priority > b.priority; });
      std::rotate(place, lane, lane + 1);
    }
  }

  std::vector<Lane> lanes_;
};

}  // namespace pbox::worker
