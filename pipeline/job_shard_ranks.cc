// The ranks of a shard: which are present, which are missing, and whose push has ended the job.
#include <algorithm>

#include "base/event.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

void JobShard::set_present(Session& session, bool present) {
  if (session.present == present) return;
  PBOX_DCHECK(&sessions_[session.rank] == &session);
  PBOX_DCHECK(present ? present_count_ < worker_count() : present_count_ > 0);
  session.present = present;
  present_count_ += present ? 1 : UINT32_MAX;
}

// A rank that has pushed the whole chunk counts as complete only while it is present. If it is
// excluded and returns, its push counts again.
void JobShard::recount(Chunk& chunk, const Session& changed) const {
  const bool present = changed.present;
  if (present) chunk.first_missing = std::min(chunk.first_missing, changed.rank);
  if (chunk.claimed[changed.rank] != chunk.full_mask) return;
  PBOX_DCHECK(present || chunk.complete_workers > 0);
  chunk.complete_workers = static_cast<uint16_t>(chunk.complete_workers + (present ? 1 : -1));
  PBOX_DCHECK(chunk.complete_workers <= present_count_);
}

void JobShard::reject(const Session& session) {
  PBOX_DCHECK(mode == Mode::kAggregate && &sessions_[session.rank] == &session);
  if (has_rejected()) return;
  accepted_generation = kNoGeneration;
  rejected_.store(session.rank + 1, std::memory_order_release);
  set_event(report_fd_);
}

void JobShard::reject_shape(const ShapeMismatch& mismatch) {
  PBOX_DCHECK(is_collective && mismatch.first_rank < worker_count());
  PBOX_DCHECK(mismatch.other_rank < worker_count());
  if (has_mismatch()) return;
  accepted_generation = kNoGeneration;
  mismatch_ = mismatch;
  has_mismatch_.store(true, std::memory_order_release);
  set_event(report_fd_);
}

std::optional<ShapeMismatch> JobShard::mismatch() const {
  if (!has_mismatch_.load(std::memory_order_acquire)) return {};
  return mismatch_;
}

uint32_t JobShard::first_missing_rank(Chunk& chunk) const {
  PBOX_DCHECK(missing_workers(chunk) > 0);
  uint32_t& rank = chunk.first_missing;
  while (!sessions_[rank].present || chunk.claimed[rank] == chunk.full_mask) {
    ++rank;
    PBOX_DCHECK(rank < worker_count());
  }
  return rank;
}

}  // namespace pbox::pipeline
