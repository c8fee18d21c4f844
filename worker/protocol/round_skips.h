// With model drop, finds the round that each operation's gradient is for, the same in all chunks.
//
// A worker that fell behind skips the rounds that are closed in every chunk. If it skipped chunk by
// chunk, two ranks could wait for each other forever: each would wait for the quorum of one chunk
// before it pushes the chunk that the other waits for. With one number for all chunks, no worker is
// past the oldest round that is open anywhere. A worker before that round waits for nothing. Once
// all workers are in it, it has every worker's push.
//
// Used on the I/O thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "nic/wire/header.h"

namespace pbox::worker {

class RoundSkips {
 public:
  // The newest operation of any tensor begins. `oldest_open_round`: the oldest round that is open
  // in any chunk. `slowest_operation`: the oldest operation that any tensor still needs.
  void begin(uint32_t operation, uint32_t oldest_open_round, uint32_t slowest_operation) {
    PBOX_DCHECK(is_newest(operation));
    PBOX_DCHECK(wire::round_distance(slowest_operation, operation) <= 0);
    newest_operation_ = operation;
    const auto still_unused = std::find_if(skips_.begin() + 1, skips_.end(), [&](const Skip& skip) {
      return wire::round_distance(skip.operation, slowest_operation) > 0;
    });
    skips_.erase(skips_.begin(), still_unused - 1);
    PBOX_DCHECK(!skips_.empty());
    const uint32_t rounds = oldest_open_round - operation;
    if (wire::round_distance(rounds, skips_.back().rounds) <= 0) return;
    skips_.push_back({operation, rounds});
  }
  bool is_newest(uint32_t operation) const {
    return wire::round_distance(operation, newest_operation_) > 0;
  }
  // Returns the round of an operation that has begun.
  uint32_t round(uint32_t operation) const {
    auto skip = skips_.end() - 1;
    while (skip != skips_.begin() && wire::round_distance(skip->operation, operation) > 0) --skip;
    return operation + skip->rounds;
  }

 private:
  // From `operation` on, `rounds` rounds have been skipped in total.
  struct Skip {
    uint32_t operation = 0;
    uint32_t rounds = 0;
  };
  std::vector<Skip> skips_{{}};  // ascending; the first one applies to the slowest tensor
  uint32_t newest_operation_ = 0;
};

}  // namespace pbox::worker
