// The end of a round whose pushes have arrived: its result is made (round_result.h) and published.
#include <algorithm>
#include <cstring>
#include <utility>

#include "pipeline/engine.h"
#include "pipeline/grace.h"
#include "pipeline/held_rounds.h"
#include "pipeline/result_form.h"
#include "pipeline/round_result.h"
#include "pipeline/round_tracing.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::pipeline {
namespace {

// Opens a round of gradients in blocks. If the finished round was one of full weights, its pushes
// were cut into different fragments.
void open_delta_round(const JobShard& shard, Chunk& chunk) {
  chunk.deltas.is_result_full = chunk.dtype == wire::Dtype::kF32;
  PBOX_DCHECK(chunk.deltas.is_result_full || chunk.dtype == chunk.deltas.dtype);
  if (chunk.deltas.is_result_full) shard.take_layout(chunk, chunk.deltas.dtype);
}

// Relaxed shards, once the result is made: notes which fragments each rank has pushed in time.
// Where results are deltas, initial weights were cut into different fragments than later rounds. A
// rank that has pushed all of them counts as having pushed all of a delta; any other rank counts as
// having pushed nothing.
void close_pushes(JobShard& shard, Chunk& chunk, uint64_t now_ns) {
  if (chunk.sync == nullptr || chunk.applies_on_arrival()) return;
  PBOX_DCHECK(chunk.sync->pushed != nullptr && !chunk.is_stepped);
  chunk.sync->late = {};
  const bool changes_form = gives_deltas(chunk) && chunk.dtype != chunk.deltas.dtype;
  uint32_t ranks_cut = 0;
  for (const Session& session : shard.sessions()) {
    sync::Pushed& pushed = chunk.sync->pushed[session.rank];
    const uint64_t claimed = chunk.claimed[session.rank];
    ranks_cut += session.present && claimed != 0 && claimed != chunk.full_mask ? 1 : 0;
    if (claimed != 0) pushed = {chunk.open_round(), claimed, claimed};
    if (!changes_form) continue;
    pushed.mask = pushed.mask == chunk.full_mask ? delta_mask(shard, chunk) : 0;
    pushed.counted &= pushed.mask;
  }
  if (shard.grace.is_reserved()) {
    shard.grace.close(shard.index_of(chunk), ranks_cut, now_ns);
  }
}

// Called when the lane has given the chunk back. Makes the result of a relayed round; the result of
// a replicated round is made already.
void take_back(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(chunk.up.is_sent == chunk.up.is_relayed());
  PBOX_DCHECK(chunk.is_stepped == !chunk.up.is_relayed());
  chunk.up.is_sent = false;
  if (!std::exchange(chunk.is_stepped, false)) make_result(shard, chunk);
}

}  // namespace

// Ends a round that takes no more pushes: holds it if it must wait for a verdict, or completes it.
void Engine::end_round(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(!chunk.is_stepped && !chunk.is_held && !chunk.has_own_rounds());
  PBOX_DCHECK(chunk.complete_workers >= shard.workers_needed(chunk));
  if (shard.keeps_pushes(chunk) && !shard.receives_weights(chunk)) [[unlikely]] {
    add_in_order(shard, chunk, context_.now_ns);
  }
  if (shard.has_rejected()) [[unlikely]]
    return;
  const bool is_gated = shard.gate != nullptr && !shard.receives_weights(chunk);
  if (!is_gated || !hold_round(shard, chunk)) complete_round(shard, chunk);
}

// Finishes the round, or hands its sum or state to the relay. In the second case it finishes once
// the relay gives the chunk back.
void Engine::complete_round(JobShard& shard, Chunk& chunk) {
  if (!shard.has_uplinks()) [[likely]] {
    finish_round(shard, chunk);
    return;
  }
  PBOX_DCHECK(chunk.up.lane < shard.uplinks.size());
  Uplink& uplink = *shard.uplinks[chunk.up.lane];
  if (chunk.up.is_relayed()) {
    chunk.up.is_sent = true;
    const uint32_t slot = chunk.open_round() & 1;
    uplink.send({chunk.id, chunk.accumulator[slot], chunk.up.result[slot]});
  } else {
    make_result(shard, chunk);
    close_pushes(shard, chunk, context_.now_ns);
    chunk.is_stepped = true;
    complete_block(shard, chunk);
    uplink.send({chunk.id, chunk.weights, chunk.weights});
  }
}

bool Engine::finish_waiting_rounds(uint64_t now_ns) {
  context_.now_ns = now_ns;
  due_ns_ = UINT64_MAX;
  bool any = false;
  size_t work = 0;
  for (JobShard* shard : context_.shards) {
    uint32_t id = 0;
    for (const auto& uplink : shard->uplinks) {
      while (uplink->take(id)) {
        PBOX_DCHECK(shard->find(id) != nullptr);
        take_back(*shard, *shard->find(id));
        publish_result(*shard, *shard->find(id));
        any = true;
      }
    }
    while (Chunk* chunk = work < kChunksPerStep ? next_past_grace(*shard, now_ns) : nullptr) {
      shard->rounds_cut.add(1);
      shard->stragglers.ended(shard->index_of(*chunk));
      end_round(*shard, *chunk);
      work += 1 + chunk->elements / kElementsPerChunk;
    }
    due_ns_ = std::min(due_ns_, next_grace_ends_ns(*shard));
    any = any || work > 0;
    if (shard->gate == nullptr) continue;
    while (Chunk* chunk = next_with_verdict(*shard, work, kChunksPerStep)) {
      complete_round(*shard, *chunk);
      work += chunk->elements / kElementsPerChunk;
    }
    any = any || work > 0;
  }
  return any;
}

void Engine::finish_round(JobShard& shard, Chunk& chunk) {
  make_result(shard, chunk);
  close_pushes(shard, chunk, context_.now_ns);
  publish_result(shard, chunk);
}

// Opens the next round and queues the result of this one.
void Engine::publish_result(JobShard& shard, Chunk& chunk) {
  const uint32_t round = chunk.open_round();
  const bool is_compressed = wire::is_in_blocks(chunk.dtype);
  PBOX_DCHECK(!chunk.is_stepped);
  PBOX_DCHECK(wire::round_distance(chunk.fanned_out_rounds, round) <= 0);
  if (chunk.sync != nullptr) close_round(shard, chunk);
  note_zero_results(shard, chunk);
  std::memset(chunk.claimed, 0, shard.worker_count() * sizeof(uint64_t));
  chunk.claimed_any = 0;
  chunk.complete_workers = 0;
  chunk.first_missing = 0;
  chunk.copy_rank = kNoRank;
  ++chunk.rounds_finished;
  if (gives_deltas(chunk)) [[unlikely]]
    open_delta_round(shard, chunk);
  if (shard.is_collective) [[unlikely]]
    chunk.shaped[chunk.open_round() & 1] = {};
  if (chunk.table != nullptr) [[unlikely]]
    chunk.table->clear(chunk.open_round());
  context_.counters.add(Counter::kRoundsFinished);
  if (is_compressed) [[unlikely]]
    context_.counters.add(Counter::kCompressedRounds);
  shard.rounds_finished.add(1);
  if (shard.trace != nullptr) [[unlikely]] {
    trace_event(shard, chunk, round, TraceEvent::Kind::kFull);
  }
  if (chunk.sync == nullptr) shard.egress.push(&chunk, round, chunk.priority);
}

// Called after a change of the pushes that the chunk's open round needs: ends it if it has them.
// An exclusion completes the rounds that lacked only the excluded rank's push. A rank that returns
// to a job without present ranks completes the rounds that it has pushed in full. A rank that has
// pushed a round in full holds the result of the round before, so copies of that result that have
// not left yet are void. Returns the chunk's number of elements if its round has ended, else 0.
size_t Engine::finish_if_complete(JobShard& shard, Chunk& chunk) {
  const bool lacks_quorum =
      shard.present_count() == 0 || chunk.complete_workers < shard.workers_needed(chunk);
  if (shard.grace.is_reserved() && lacks_quorum) shard.grace.cancel(shard.index_of(chunk));
  // Relayed jobs exclude no rank. Stepped rounds wait for the backup box, held ones for a verdict.
  if (shard.present_count() == 0 || chunk.up.is_relayed() || chunk.is_stepped || chunk.is_held) {
    return 0;
  }
  if (chunk.complete_workers < shard.workers_needed(chunk)) return 0;
  if (shard.grace.is_reserved() && waits_for_more(shard, chunk, context_.now_ns)) return 0;
  shard.stragglers.ended(shard.index_of(chunk));
  end_round(shard, chunk);
  return chunk.elements;
}

}  // namespace pbox::pipeline
