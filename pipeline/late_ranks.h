// Records in the straggler ledger (observe/straggler_ledger.h) and in the ranks' sessions which
// pushes were the last. The pipeline's own core calls everything here.
//
// Where pushes are applied on arrival, a chunk's open round is the oldest one that some rank still
// has to push, and it finishes once all ranks have pushed it. Some ranks may have pushed it long
// before, while an older round was open. Their wait for it counts from the end of that older round.
#pragma once

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// Called when the session's push is the last one that the chunk's open round needs.
inline void note_last(JobShard& shard, Session& session, const Chunk& chunk, uint64_t now_ns) {
  session.last_arrivals.add(1);
  const auto [skew_ns, late_ns] =
      shard.stragglers.finished(shard.index_of(chunk), chunk.rounds_finished, session.rank, now_ns);
  PBOX_DCHECK(late_ns <= skew_ns);
  session.late_ns.add(late_ns);
  if (late_ns <= session.worst_late_ns.get()) return;
  session.worst_late_ns.set(late_ns);
  session.worst_chunk_round.set(uint64_t{chunk.id} << 32 | chunk.open_round());
  session.worst_at_ns.set(now_ns);
}

// Returns whether the rank, which takes part, has pushed all of the chunk's open round.
inline bool has_pushed_open_round(const Chunk& chunk, uint32_t rank) {
  if (!chunk.has_own_rounds()) return chunk.claimed[rank] == chunk.full_mask;
  return chunk.sync->progress.next(rank) > chunk.sync->progress.slowest();
}

// Called when the chunk has a new open round, where pushes are applied on arrival. If some rank has
// pushed that round already, the others are late from now on.
inline void note_opened(JobShard& shard, const Chunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(chunk.has_own_rounds());
  for (const Session& session : shard.sessions()) {
    if (!session.present || !has_pushed_open_round(chunk, session.rank)) continue;
    return shard.stragglers.arrived(shard.index_of(chunk), now_ns);
  }
}

}  // namespace pbox::pipeline
