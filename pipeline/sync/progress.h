// The progress of each rank on one chunk whose pushes are applied on arrival, and the ranks whose
// reads are parked. Its arrays belong to the caller. The pipeline's own core calls it.
//
// A push costs O(1), or O(ranks) when it advances the minimum clock. V and F are FluentPS's
// (CLUSTER 2019) names for the slowest and the fastest rank's iteration.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "pipeline/sync/rank_set.h"

namespace pbox::sync {

class Progress {
 public:
  // Begins with every rank about to push `round`. `next` has one element per rank, outlives this.
  void begin(std::span<uint64_t> next, uint64_t round);

  // Begins with each rank about to push next[rank], and no read parked. UINT64_MAX: the rank no
  // longer takes part. At least one rank must take part.
  void resume(std::span<uint64_t> next);

  // Called when the rank has pushed next(rank) in full. Returns true if V advanced.
  bool complete_push(uint32_t rank);
  // Called when the rank takes part no more; unparks its read. Returns true if V advanced.
  bool leave(uint32_t rank);

  // Returns the round that the rank pushes next.
  uint64_t next(uint32_t rank) const {
    PBOX_DCHECK(rank < next_.size());
    return next_[rank];
  }
  bool takes_part(uint32_t rank) const { return next(rank) != kLeft; }
  uint64_t slowest() const { return slowest_; }  // V: the oldest round that some rank pushes next
  uint64_t fastest() const { return fastest_; }  // F: the newest round that some rank has pushed
  // Returns the number of rounds that the fastest rank has pushed and the slowest has not.
  uint64_t lead() const {
    PBOX_DCHECK(slowest_ <= fastest_ + 1);
    return fastest_ + 1 - slowest_;
  }

  void park(uint32_t rank) { parked_.add(rank); }
  void unpark(uint32_t rank) { parked_.remove(rank); }
  bool is_parked(uint32_t rank) const { return parked_.has(rank); }
  const RankSet& parked() const { return parked_; }

  struct Behind {
    uint32_t count = 0;
    uint32_t slowest_rank = 0;
  };
  // Returns the number of ranks that have not pushed every round below `clock`, and the slowest.
  Behind behind(uint64_t clock) const;

 private:
  static constexpr uint64_t kLeft = UINT64_MAX;

  bool recount();

  std::span<uint64_t> next_;
  uint64_t slowest_ = 0;
  uint64_t fastest_ = 0;
  uint32_t slowest_count_ = 0;  // ranks whose next round is slowest_
  RankSet parked_;
};

}  // namespace pbox::sync
