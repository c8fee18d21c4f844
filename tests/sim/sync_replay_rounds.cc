// SyncReplay's rules for the end of rounds that all ranks share: those of initial weights, of BSP
// and of model `drop`.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/clock.h"
#include "tests/sim/sync_replay.h"

namespace pbox::sim {

using wire::SyncModel;

uint32_t SyncReplay::complete_ranks(const Chunk& chunk) const {
  uint32_t complete = 0;
  for (uint32_t rank = 0; rank < chunk.claimed.size(); ++rank) {
    complete += is_present(rank) && chunk.claimed[rank] == full_mask(chunk);
  }
  return complete;
}

bool SyncReplay::has_grace(const Chunk& chunk, uint32_t complete) const {
  return chunk.clock > 0 && chunk.rule.grace_ms != 0 &&
         complete < static_cast<uint32_t>(std::popcount(present_));
}

// Closes the open round if it has the ranks that it needs. Initial weights and rounds of BSP need
// all ranks. A round of model `drop` needs a quorum, and then waits for the others until its grace
// is over.
void SyncReplay::close_if_complete(Chunk& chunk) {
  auto needed = static_cast<uint32_t>(std::popcount(present_));
  const uint32_t complete = complete_ranks(chunk);
  const bool drops = chunk.rule.model == SyncModel::kDrop;
  if (chunk.last) return;  // it has closed
  if (chunk.clock > 0 && drops) needed = std::min(needed, chunk.rule.quorum);
  if (present_ == 0 || complete < needed) {
    chunk.quorum_ns = 0;
    return;
  }
  if (has_grace(chunk, complete)) {
    if (chunk.quorum_ns == 0) {
      chunk.quorum_ns = now_ns_;
      chunk.quorum_number = ++quorums_;
    }
    const bool is_auto = chunk.rule.grace_ms == wire::kGraceAuto;
    const uint64_t grace_ns =
        is_auto ? auto_grace_ns() : chunk.rule.grace_ms * uint64_t{kNanosPerMilli};
    if (now_ns_ - chunk.quorum_ns < grace_ns) return;
  }
  close(chunk);
}

void SyncReplay::close(Chunk& chunk) {
  const bool is_copied = shard_.has_uplinks();
  if (is_copied) chunk.last = std::make_shared<const Chunk>(chunk);
  chunk.former_ns = std::exchange(chunk.quorum_ns, 0);
  for (uint32_t rank = 0; rank < chunk.claimed.size(); ++rank) {
    const bool is_cut = chunk.claimed[rank] != 0 && chunk.claimed[rank] != full_mask(chunk);
    if (is_cut && is_present(rank) && chunk.former_ns != 0) {
      note_lateness(chunk, chunk.former_ns - (now_ns_ - chunk.former_ns));
    }
    if (chunk.claimed[rank] != 0) {
      chunk.pushed[rank] = {static_cast<uint32_t>(chunk.clock), chunk.claimed[rank],
                            chunk.claimed[rank]};
      chunk.lacking &= ~(1u << rank);
    }
  }
  if (has_deltas(chunk)) {
    make_delta(chunk);
  } else if (chunk.clock > 0) {
    for (uint32_t index = 0; index < chunk.held->fragment_count; ++index) {
      step(chunk, index, part(chunk.sums, chunk, index));
    }
  }
  std::fill(chunk.sums.begin(), chunk.sums.end(), 0.0f);
  std::fill(chunk.weight_sums.begin(), chunk.weight_sums.end(), 0);
  if (has_deltas(chunk)) recut_pushes(chunk);
  if (!is_copied) publish(chunk);
}

void SyncReplay::publish(Chunk& chunk) const {
  for (uint32_t rank = 0; rank < chunk.claimed.size(); ++rank) {
    const bool is_cut = chunk.claimed[rank] != 0 && chunk.claimed[rank] != full_mask(chunk);
    const bool is_answered = is_present(rank) && (!chunk.rule.counts_late || !is_cut);
    if (chunk.claimed[rank] != 0 && is_answered) chunk.due |= (1u << rank) & heard_;
    chunk.claimed[rank] = 0;
  }
  chunk.last.reset();
  ++chunk.clock;
  std::fill(chunk.next.begin(), chunk.next.end(), chunk.clock);
}

bool SyncReplay::end_graces() {
  bool any = false;
  for (Chunk& chunk : chunks_) {
    if (!chunk.last || chunk.held->is_stepped) continue;
    publish(chunk);
    any = true;
  }
  // The box closes rounds in the order in which they reached their quorums.
  std::vector<Chunk*> waiting;
  for (Chunk& chunk : chunks_) {
    if (chunk.quorum_ns != 0) waiting.push_back(&chunk);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Chunk* one, const Chunk* other) {
    return one->quorum_number < other->quorum_number;
  });
  for (Chunk* chunk : waiting) {
    close_if_complete(*chunk);
    any = any || chunk->quorum_ns == 0;
  }
  return any;
}

void SyncReplay::note_lateness(const Chunk& chunk, uint64_t since_ns) {
  const size_t stride = (chunks_.size() + 3) / 4;
  const bool is_sampled = static_cast<size_t>(&chunk - chunks_.data()) % stride == 0;
  if (is_sampled && since_ns != 0) lateness_ns_.push_back(now_ns_ - since_ns);
}

// Returns the median of the newest samples plus three times the median distance from it, but at
// least a millisecond; UINT64_MAX while there are too few samples.
uint64_t SyncReplay::auto_grace_ns() const {
  constexpr size_t kKept = 64, kLeast = 4;
  if (lateness_ns_.size() < kLeast) return UINT64_MAX;
  const size_t count = std::min(kKept, lateness_ns_.size());
  std::vector<uint64_t> newest(lateness_ns_.end() - static_cast<ptrdiff_t>(count),
                               lateness_ns_.end());
  std::sort(newest.begin(), newest.end());
  const uint64_t middle = newest[count / 2];
  for (uint64_t& one : newest) one = std::max(one, middle) - std::min(one, middle);
  std::sort(newest.begin(), newest.end());
  return std::max<uint64_t>(middle + 3 * newest[count / 2], kNanosPerMilli);
}

}  // namespace pbox::sim
