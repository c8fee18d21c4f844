#include "pipeline/sync/progress.h"

#include <algorithm>

#include "base/check.h"

namespace pbox::sync {

void Progress::begin(std::span<uint64_t> next, uint64_t round) {
  PBOX_DCHECK(!next.empty() && round > 0 && round != kLeft);
  next_ = next;
  std::fill(next_.begin(), next_.end(), round);
  slowest_ = round;
  fastest_ = round - 1;
  slowest_count_ = static_cast<uint32_t>(next_.size());
  parked_ = {};
}

void Progress::resume(std::span<uint64_t> next) {
  next_ = next;
  slowest_ = fastest_ = 0;
  parked_ = {};
  recount();
  PBOX_DCHECK(slowest_count_ > 0);
}

bool Progress::complete_push(uint32_t rank) {
  PBOX_DCHECK(takes_part(rank) && !is_parked(rank));
  PBOX_DCHECK(next_[rank] >= slowest_ && slowest_count_ > 0);
  const uint64_t round = next_[rank]++;
  fastest_ = std::max(fastest_, round);
  return round == slowest_ && --slowest_count_ == 0 && recount();
}

bool Progress::leave(uint32_t rank) {
  PBOX_DCHECK(rank < next_.size());
  next_[rank] = kLeft;
  parked_.remove(rank);
  return recount();
}

// Recomputes V, F and the number of slowest ranks from all ranks. Returns true if V advanced.
bool Progress::recount() {
  uint64_t slowest = kLeft;
  uint64_t fastest_next = 0;
  uint32_t count = 0;
  for (const uint64_t next : next_) {
    if (next == kLeft) continue;
    if (next < slowest) {
      slowest = next;
      count = 0;
    }
    count += next == slowest ? 1 : 0;
    fastest_next = std::max(fastest_next, next);
  }
  if (slowest == kLeft) return false;
  const bool advanced = slowest > slowest_;
  slowest_ = slowest;
  slowest_count_ = count;
  fastest_ = fastest_next - 1;
  PBOX_DCHECK(slowest_count_ > 0 && slowest_ <= fastest_ + 1);
  return advanced;
}

Progress::Behind Progress::behind(uint64_t clock) const {
  PBOX_DCHECK(clock != kLeft);
  Behind behind;
  uint64_t least = clock;
  for (uint32_t rank = 0; rank < next_.size(); ++rank) {
    if (next_[rank] >= clock) continue;
    ++behind.count;
    if (next_[rank] < least) {
      least = next_[rank];
      behind.slowest_rank = rank;
    }
  }
  return behind;
}

}  // namespace pbox::sync
