// Tells the straggler ledger (observe/straggler_ledger.h) and the ranks' sessions which pushes were
// the last. The pipeline's own core.
//
// Where pushes are applied on arrival, a chunk's open round is the oldest one that some rank has
// still to push, and it has finished once no rank has. Other ranks may have pushed it long before,
// while an older round was open: then they have waited for it since that one finished.
#pragma once

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// The session's push is the last one that the chunk's open round needs.
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

// Where pushes are applied on arrival, the chunk has a new open round. If some rank has pushed it
// already, the others are late from now on.
inline void note_opened(JobShard& shard, const Chunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(chunk.has_own_rounds());
  for (const Session& session : shard.sessions()) {
    if (!session.present || !has_pushed_open_round(chunk, session.rank)) continue;
    return shard.stragglers.arrived(shard.index_of(chunk), now_ns);
  }
}

}  // namespace pbox::pipeline
