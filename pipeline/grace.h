// Rounds of model `drop` that have their quorum. They end once all ranks have pushed or their grace
// is over (sync/round_grace.h). The pipeline's own core calls everything here.
#pragma once

#include <cstdint>

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// Returns whether the chunk's open round waits for more ranks, because its grace is not over. The
// round has as many pushes as it needs.
inline bool waits_for_more(JobShard& shard, const Chunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(chunk.sync != nullptr && chunk.complete_workers >= shard.workers_needed(chunk));
  const bool are_all_in = chunk.complete_workers >= shard.present_count();
  if (are_all_in || chunk.rounds_finished == 0) return false;
  return shard.grace.waits(shard.index_of(chunk), chunk.sync->spec, now_ns);
}

// Returns a chunk whose open round has to end now, because its grace is over; null if there is
// none, or a change of the membership is under way.
inline Chunk* next_past_grace(JobShard& shard, uint64_t now_ns) {
  const uint32_t oldest = shard.grace.oldest();
  const bool is_changing = shard.accepted_generation == JobShard::kNoGeneration;
  if (oldest == sync::RoundGrace::kNone || is_changing) return nullptr;
  PBOX_DCHECK(oldest < shard.chunk_count());
  Chunk& chunk = shard.chunks()[oldest];
  return waits_for_more(shard, chunk, now_ns) ? nullptr : &chunk;
}

// Returns when the next round of the shard ends by its grace; UINT64_MAX if none does.
inline uint64_t next_grace_ends_ns(const JobShard& shard) {
  const uint32_t oldest = shard.grace.oldest();
  if (oldest == sync::RoundGrace::kNone) return UINT64_MAX;
  PBOX_DCHECK(oldest < shard.chunk_count() && shard.chunks()[oldest].sync != nullptr);
  return shard.grace.ends_ns(oldest, shard.chunks()[oldest].sync->spec);
}

}  // namespace pbox::pipeline
