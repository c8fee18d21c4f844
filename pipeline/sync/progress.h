// Where each rank is on one chunk of a job whose pushes are applied as they come, and whose reads
// wait there. A value without I/O; the arrays are the caller's.
//
// A push costs O(1), and O(ranks) when it is the one that all others were ahead of.
#pragma once

#include <cstdint>
#include <span>

#include "pipeline/sync/rank_set.h"

namespace pbox::sync {

class Progress {
 public:
  // Everybody pushes `round` next. `next`: by rank, outlives this.
  void begin(std::span<uint64_t> next, uint64_t round);

  // Each rank pushes next[rank] next; UINT64_MAX: it takes part no more. Some rank does. Nobody's
  // read waits.
  void go_on(std::span<uint64_t> next);

  // The rank has pushed next(rank) in full. True if V advanced.
  bool complete_push(uint32_t rank);
  // The rank takes part no more, whose read waits no more. True if V advanced. For good.
  bool leave(uint32_t rank);

  uint64_t next(uint32_t rank) const { return next_[rank]; }
  uint64_t slowest() const { return slowest_; }  // V: the least that is pushed next
  uint64_t fastest() const { return fastest_; }  // F: the newest that somebody has pushed
  // How far the fastest is ahead of what the slowest has pushed.
  uint64_t lead() const { return fastest_ + 1 - slowest_; }

  void park(uint32_t rank) { parked_.add(rank); }
  void unpark(uint32_t rank) { parked_.remove(rank); }
  bool is_parked(uint32_t rank) const { return parked_.has(rank); }
  const RankSet& parked() const { return parked_; }

  // Ranks that have not pushed all rounds below `clock`, and which of them is the slowest.
  struct Behind {
    uint32_t count = 0;
    uint32_t slowest_rank = 0;
  };
  Behind behind(uint64_t clock) const;

 private:
  static constexpr uint64_t kGone = UINT64_MAX;

  bool recount();

  std::span<uint64_t> next_;
  uint64_t slowest_ = 0;
  uint64_t fastest_ = 0;
  uint32_t slowest_count_ = 0;  // ranks whose next is slowest_
  RankSet parked_;
};

}  // namespace pbox::sync
