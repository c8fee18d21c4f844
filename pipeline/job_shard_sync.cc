// The reads of a relaxed shard: reads that wait, and replies that are due.
#include "pipeline/job_shard.h"
#include "pipeline/round_tracing.h"

namespace pbox::pipeline {

// Adds the time since the last change, multiplied by the number of parked reads, to `parked_ns`.
void JobShard::count_parked(uint64_t now_ns) {
  if (now_ns > parked_changed_ns) parked_ns.add(parked_count * (now_ns - parked_changed_ns));
  parked_changed_ns = now_ns;
}

void JobShard::park(Chunk& chunk, uint32_t rank, uint64_t now_ns) {
  PBOX_DCHECK(chunk.has_own_rounds() && !chunk.sync->progress.is_parked(rank));
  PBOX_DCHECK(parked_count < worker_count() * chunk_count());
  count_parked(now_ns);
  ++parked_count;
  pulls_delayed.add(1);
  chunk.sync->progress.park(rank);
  if (trace != nullptr) [[unlikely]] {
    trace_read(*this, chunk, TraceEvent::Kind::kParked, rank);
  }
}

void JobShard::unpark(Chunk& chunk, uint32_t rank, uint64_t now_ns) {
  PBOX_DCHECK(parked_count > 0 && chunk.sync->progress.is_parked(rank));
  count_parked(now_ns);
  --parked_count;
  chunk.sync->progress.unpark(rank);
  if (trace != nullptr) [[unlikely]] {
    trace_read(*this, chunk, TraceEvent::Kind::kReleased, rank);
  }
}

sync::Reader JobShard::reader(const Chunk& chunk, uint32_t rank) const {
  PBOX_DCHECK(chunk.has_own_rounds() && rank < worker_count());
  const sync::Progress& progress = chunk.sync->progress;
  return {.seed = draw_seed,
          .rank = rank,
          .round = progress.next(rank) - 1,
          .slowest = progress.slowest(),
          .fastest = progress.fastest(),
          .significance = chunk.sync->sizes[rank].significance};
}

void JobShard::queue_reply(Chunk& chunk, uint32_t rank) {
  PBOX_DCHECK(rank < worker_count());
  chunk.sync->replies_due.add(rank);
  if (reply_cursor.chunk == &chunk) reply_cursor.ranks.remove(rank);
  if (!chunk.sync->queued) queue_replies(chunk);
}

void JobShard::queue_replies(Chunk& chunk) {
  PBOX_DCHECK(chunk.fragment_count > 0 && !chunk.sync->queued);
  PBOX_DCHECK(!chunk.sync->replies_due.empty());
  chunk.sync->queued = true;
  egress.push(&chunk, chunk.open_round(), chunk.priority);
}

}  // namespace pbox::pipeline
