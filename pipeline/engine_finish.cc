// The end of a round: all ranks' pushes are in, the result is made and published. In mode optimize
// the optimizer runs on the chunk while its sum is in the core's cache (PHub: Luo et al., SoCC
// 2018, "tall" aggregation, section 3.2).
#include <algorithm>
#include <cstring>
#include <utility>

#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/state/state_codec.h"
#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {

void Engine::note_last(JobShard& shard, Session& session, const Chunk& chunk) {
  session.last_arrivals.add(1);
  const auto [skew_ns, late_ns] = shard.stragglers.finished(
      shard.index_of(chunk), chunk.rounds_finished, session.rank, now_ns_);
  PBOX_DCHECK(late_ns <= skew_ns);
  session.late_ns.add(late_ns);
  if (late_ns <= session.worst_late_ns.get()) return;
  session.worst_late_ns.set(late_ns);
  session.worst_chunk_round.set(uint64_t{chunk.id} << 32 | chunk.open_round());
  session.worst_at_ns.set(now_ns_);
}

// Finishes the round, or hands its sum or state to the relay. A relayed round finishes once the
// relay gives the chunk back.
void Engine::end_round(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(!chunk.is_stepped && !chunk.has_own_rounds());
  PBOX_DCHECK(chunk.complete_workers >= shard.workers_needed(chunk));
  if (keeps_pushes(shard, chunk) && !receives_weights(shard, chunk)) [[unlikely]] {
    add_in_order(shard, chunk);
  }
  if (shard.uplink == nullptr) [[likely]] {
    finish_round(shard, chunk);
  } else if (shard.mode == Mode::kAggregate) {
    shard.uplink->send({chunk.id, chunk.accumulator[chunk.open_round() & 1]});
  } else {
    make_result(shard, chunk);
    chunk.is_stepped = true;
    write_counters(chunk.weights, StateLayout::block(shard.optimizer.kind, chunk.elements),
                   chunk.rounds_made(), chunk.steps());
    shard.uplink->send({chunk.id, chunk.weights});
  }
}

// Numerics `ordered`: adds the pushes that were kept, in the order of ranks, so that the sum does
// not depend on the order of arrival. A rank that has not pushed a fragment is left out of it.
void Engine::add_in_order(JobShard& shard, Chunk& chunk) {
  const auto type = static_cast<size_t>(chunk.dtype);
  float* const accumulator = chunk.accumulator[chunk.open_round() & 1];
  PBOX_DCHECK(accumulator != nullptr && chunk.pushed != nullptr);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    float* sum = accumulator + shard.fragment_offset_elements(chunk, fragment);
    const size_t elements = fragment_elements(shard, chunk, fragment);
    bool is_first = true;
    for (Session& session : shard.sessions()) {
      if ((chunk.claimed[session.rank] >> fragment & 1) == 0) continue;
      const auto kernel = is_first ? kernels_.store[type] : kernels_.add[type];
      if (!kernel(sum, shard.pushed(chunk, session.rank, fragment), elements)) {
        note_nonfinite(session, chunk.id, chunk.open_round());
      }
      is_first = false;
    }
    PBOX_DCHECK(!is_first);
  }
}

bool Engine::publish_returned_chunks(uint64_t now_ns) {
  now_ns_ = now_ns;
  bool any = false;
  for (JobShard* shard : shards_) {
    uint32_t id = 0;
    while (shard->uplink != nullptr && shard->uplink->take(id)) {
      PBOX_DCHECK(shard->find(id) != nullptr);
      Chunk& chunk = *shard->find(id);
      PBOX_DCHECK(chunk.is_stepped == (shard->mode == Mode::kOptimize));
      if (!std::exchange(chunk.is_stepped, false)) make_result(*shard, chunk);
      publish_result(*shard, chunk);
      any = true;
    }
  }
  return any;
}

void Engine::finish_round(JobShard& shard, Chunk& chunk) {
  make_result(shard, chunk);
  publish_result(shard, chunk);
}

void Engine::make_result(JobShard& shard, Chunk& chunk) {
  const bool is_averaged = count_contributors(shard, chunk);
  if (shard.cut != nullptr) [[unlikely]]
    shard.cut->copy_before_round(shard, chunk);
  if (shard.mode == Mode::kOptimize) {
    make_weights(shard, chunk, is_averaged);
  } else {
    make_sum(shard, chunk, is_averaged);
  }
}

// Mode optimize: the result is the weights after the step.
void Engine::make_weights(JobShard& shard, Chunk& chunk, bool is_averaged) {
  if (!receives_weights(shard, chunk)) run_optimizer(shard, chunk, is_averaged);
  if (chunk.dtype == wire::Dtype::kF32) return;
  PBOX_DCHECK(chunk.result[chunk.open_round() & 1] != nullptr);
  kernels_.narrow[static_cast<size_t>(chunk.dtype)](chunk.result[chunk.open_round() & 1],
                                                    chunk.weights, chunk.elements);
}

// Mode aggregate: the result is the sum or mean, narrowed to the chunk's type in place.
void Engine::make_sum(JobShard& shard, Chunk& chunk, bool is_averaged) {
  const uint32_t slot = chunk.open_round() & 1;
  const bool copied = chunk.copy_rank != kNoRank;
  PBOX_DCHECK(chunk.result[slot] == reinterpret_cast<std::byte*>(chunk.accumulator[slot]));
  if (shard.reduction == Reduction::kMean && !is_averaged && !copied) {
    const uint32_t workers = shard.uplink ? shard.uplink->workers() : shard.worker_count();
    PBOX_DCHECK(workers > 0);
    kernels_.scale(chunk.accumulator[slot], 1.0f / static_cast<float>(workers), chunk.elements);
  }
  if (chunk.dtype == wire::Dtype::kF32) return;
  kernels_.narrow[static_cast<size_t>(chunk.dtype)](chunk.result[slot], chunk.accumulator[slot],
                                                    chunk.elements);
}

// Opens the next round and queues the result of this one.
void Engine::publish_result(JobShard& shard, Chunk& chunk) {
  const uint32_t round = chunk.open_round();
  PBOX_DCHECK(!chunk.is_stepped);
  PBOX_DCHECK(wire::round_distance(chunk.fanned_out_rounds, round) <= 0);
  if (chunk.sync != nullptr) close_round(shard, chunk);
  std::memset(chunk.claimed, 0, shard.worker_count() * sizeof(uint64_t));
  chunk.claimed_any = 0;
  chunk.complete_workers = 0;
  chunk.copy_rank = kNoRank;
  ++chunk.rounds_finished;
  counters_.add(Counter::kRoundsFinished);
  shard.rounds_finished.add(1);
  if (shard.trace != nullptr) [[unlikely]] {
    trace_round(shard, chunk, round, TraceEvent::Kind::kFull);
  }
  if (chunk.sync == nullptr) shard.egress.push(&chunk, round, chunk.priority);
}

// A round that ends without a rank may hold that rank's part of some fragments: each fragment is
// divided by the number of ranks that are in it.
bool Engine::count_contributors(JobShard& shard, Chunk& chunk) {
  if (!shard.partial || chunk.copy_rank != kNoRank) return false;
  const uint32_t slot = chunk.open_round() & 1;
  uint16_t* counts = chunk.contributors[slot];
  PBOX_DCHECK(counts != nullptr);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    counts[fragment] = 0;
    for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
      counts[fragment] =
          static_cast<uint16_t>(counts[fragment] + (chunk.claimed[rank] >> fragment & 1));
    }
    PBOX_DCHECK(counts[fragment] > 0);
  }
  const bool is_whole =
      shard.present_count() == shard.worker_count() && shard.sync.model != wire::SyncModel::kDrop;
  if (is_whole || receives_weights(shard, chunk) || shard.reduction == Reduction::kSum)
    return false;
  average_by_contributors(shard, chunk);
  return true;
}

void Engine::average_by_contributors(const JobShard& shard, Chunk& chunk) {
  const uint32_t slot = chunk.open_round() & 1;
  const uint16_t* counts = chunk.contributors[slot];
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    float* sum = chunk.accumulator[slot] + shard.fragment_offset_elements(chunk, fragment);
    reduce::kernels().scale(sum, 1.0f / static_cast<float>(counts[fragment]),
                            fragment_elements(shard, chunk, fragment));
  }
}

void Engine::run_optimizer(JobShard& shard, Chunk& chunk, bool is_averaged) {
  PBOX_DCHECK(chunk.weights != nullptr && chunk.accumulator[chunk.open_round() & 1] != nullptr);
  PBOX_DCHECK(optimizer::state_floats_per_element(shard.optimizer.kind) == 0 ||
              chunk.optimizer_state != nullptr);
  const bool divides = shard.reduction == Reduction::kMean && !is_averaged;
  const float gradient_scale = divides ? 1.0f / static_cast<float>(shard.worker_count()) : 1.0f;
  const auto parameters =
      optimizer::step_parameters(shard.optimizer, chunk.lr_scale, chunk.weight_decay,
                                 gradient_scale, chunk.rounds_finished - chunk.stateless_round);
  PBOX_DCHECK(parameters.step == chunk.steps() + 1);
  optimizer::step(shard.optimizer, parameters, chunk.weights, chunk.optimizer_state,
                  chunk.accumulator[chunk.open_round() & 1], chunk.elements);
}

// An exclusion finishes the rounds that lacked only the excluded rank's push. A rank's return
// finishes the rounds that had all of its push while no rank was present. A rank that has pushed a
// round in full holds the result of the round before, so copies of that result that have not left
// yet are void.
void Engine::finish_complete_rounds(JobShard& shard) {
  // In a relayed job no rank is excluded, and complete rounds are already with the relay.
  if (shard.present_count() == 0 || shard.uplink != nullptr) return;
  for (Chunk& chunk : shard.chunks()) {
    if (chunk.complete_workers < shard.workers_needed(chunk)) continue;
    shard.stragglers.ended(shard.index_of(chunk));
    end_round(shard, chunk);
  }
}

}  // namespace pbox::pipeline
