#include "pipeline/held_rounds.h"

#include <algorithm>

#include "pipeline/round_result.h"

namespace pbox::pipeline {
namespace {

// Reports the oldest round that waits. All chunks are in one round, except after the loss of a box:
// a chunk may be behind if the ranks that knew the verdict on its round were lost too.
void report_oldest(JobShard& shard) {
  const std::vector<Chunk>& chunks = shard.chunks();
  PBOX_DCHECK(!chunks.empty());
  StepReport report{chunks.front().open_round(), 0};
  for (const Chunk& chunk : chunks) {
    PBOX_DCHECK(chunk.is_held);
    if (wire::round_distance(chunk.open_round(), report.round) < 0) {
      report.round = chunk.open_round();
    }
  }
  // In the order of chunks, so that the sum does not depend on the order of arrival.
  for (const Chunk& chunk : chunks) {
    if (chunk.open_round() != report.round) continue;
    report.squares += shard.gate->squares(shard.index_of(chunk));
  }
  shard.gate->report(report);
}

}  // namespace

// Every rank counts as having pushed the round from now on, because a rank that is admitted
// meanwhile must not add to a sum that has been measured.
bool hold_round(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(shard.gate != nullptr && !chunk.is_held && !shard.receives_weights(chunk));
  PBOX_DCHECK(chunk.complete_workers == shard.present_count());
  measure_round(shard, chunk);
  chunk.is_held = true;
  std::fill_n(chunk.claimed, shard.worker_count(), chunk.full_mask);
  if (shard.gate->has_verdict(chunk.open_round())) return false;
  if (shard.gate->holds_all()) report_oldest(shard);
  return true;
}

Chunk* next_with_verdict(JobShard& shard, size_t& work, size_t work_max) {
  PBOX_DCHECK(shard.gate != nullptr);
  size_t& next = shard.gate->next();
  while (next < shard.chunk_count() && work < work_max) {
    Chunk& chunk = shard.chunks()[next++];
    ++work;
    if (chunk.is_held && shard.gate->has_verdict(chunk.open_round())) return &chunk;
  }
  return nullptr;
}

}  // namespace pbox::pipeline
