#include "pipeline/state/chunk_state.h"

#include <algorithm>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reduce.h"
#include "pipeline/sync/rules.h"

namespace pbox::pipeline {
namespace {

// Sets the contributors of the last result. This shard may cut the chunk into other fragments than
// the state's: each gets the least count of the fragments that it overlaps.
void restore_contributors(const JobShard& shard, const Chunk& chunk, const ChunkState& state,
                          uint16_t* counts) {
  if (gives_deltas(chunk)) {  // the state has the least count of all fragments
    const uint16_t least = state.contributors.empty() ? static_cast<uint16_t>(shard.worker_count())
                                                      : state.contributors.front();
    std::fill_n(counts, limits::kFragmentCountMax, least);
    return;
  }
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    const uint32_t begin = fragment * shard.fragment_bytes;
    const uint32_t end = std::min(begin + shard.fragment_bytes, chunk.wire_bytes);
    const size_t last = (end - 1) / state.fragment_bytes;
    counts[fragment] = static_cast<uint16_t>(shard.worker_count());
    for (size_t from = begin / state.fragment_bytes; from <= last; ++from) {
      if (from >= state.contributors.size()) break;
      counts[fragment] = std::min(counts[fragment], state.contributors[from]);
    }
  }
}

StateView view_of(const JobShard& shard, const Chunk& chunk, const ChunkState& state) {
  return *decode(state.values, StateLayout::packed(shard.optimizer.kind, chunk.elements));
}

void fill_optimizer_state(const JobShard& shard, Chunk& chunk, const ChunkState& state) {
  const auto values = view_of(shard, chunk, state).optimizer_state;
  PBOX_CHECK(values.empty() == (chunk.optimizer_state == nullptr));
  std::copy(values.begin(), values.end(), chunk.optimizer_state);
}

// For pushes that are applied on arrival: gives each fragment its part of the optimizer's state.
void begin_fragments(const JobShard& shard, Chunk& chunk, const ChunkState& state) {
  const auto whole = view_of(shard, chunk, state).optimizer_state;
  const auto elements = static_cast<uint32_t>(shard.fragment_elements(chunk, 0));
  split_into_fragments(whole, chunk.elements, elements, {chunk.optimizer_state, whole.size()});
  std::fill_n(chunk.sync->updates, chunk.fragment_count, state.steps);
}

// Loads the state's weights, which the ranks have. The optimizer continues from them.
void fill_weights(const JobShard& shard, Chunk& chunk, const ChunkState& state) {
  const auto values = view_of(shard, chunk, state).weights;
  std::copy(values.begin(), values.end(), chunk.weights);
  if (gives_deltas(chunk)) std::copy(values.begin(), values.end(), chunk.deltas.master);
}

// Makes the restored weights the last result.
void restore_result(const JobShard& shard, Chunk& chunk, size_t slot) {
  keep_published(chunk, slot);
  if (gives_deltas(chunk)) {
    chunk.deltas.is_result_full = true;
    shard.take_layout(chunk, chunk.deltas.dtype);
  } else if (chunk.dtype != wire::Dtype::kF32) {
    reduce::kernels().narrow[static_cast<size_t>(chunk.dtype)](chunk.result[slot], chunk.weights,
                                                               chunk.elements);
  }
}

Chunk& new_chunk(JobShard& shard, const ChunkState& state) {
  Chunk* chunk = shard.find(state.chunk);
  PBOX_CHECK(chunk != nullptr && shard.mode == Mode::kOptimize);
  PBOX_CHECK(chunk->rounds_finished == 0 || chunk->copy_rank != kNoRank);
  PBOX_CHECK(state.values.size() == state_values(shard.optimizer.kind, chunk->elements));
  return *chunk;
}

// Calls add(clock) for each of the chunk's clocks. Pending replies are not saved: a worker that
// misses one asks again.
template <typename Add>
void for_each_clock(const JobShard& shard, const Chunk& chunk, const Add& add) {
  for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
    if (chunk.applies_on_arrival()) {
      const sync::Progress& progress = chunk.sync->progress;
      add(progress.next(rank));
      add(chunk.claimed[rank]);
      add(uint64_t{progress.is_parked(rank)});
    } else {
      const sync::Pushed& pushed = chunk.sync->pushed[rank];
      add(pushed.round);
      add(pushed.mask);
      add(pushed.counted);
    }
  }
  for (uint32_t index = 0; chunk.applies_on_arrival() && index < chunk.fragment_count; ++index) {
    add(chunk.sync->updates[index]);
  }
}

// Calls add(count) for each fragment of the last result, if contributors are counted. The fragments
// of a delta all have the least count.
template <typename Add>
void for_each_contributor(const Chunk& chunk, const Add& add) {
  const uint16_t* counts = chunk.contributors[(chunk.rounds_made() - 1) & 1];
  if (counts == nullptr) return;
  const uint16_t least = *std::min_element(counts, counts + chunk.fragment_count);
  for (uint32_t index = 0; index < chunk.fragment_count; ++index) {
    add(gives_deltas(chunk) ? least : counts[index]);
  }
}

// Restores the clocks where pushes are applied on arrival. A rank that is not present has left.
void restore_progress(JobShard& shard, Chunk& chunk, const std::vector<uint64_t>& clocks) {
  const size_t ranks = shard.worker_count();
  sync::Progress& progress = chunk.sync->progress;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    chunk.sync->next[rank] = clocks[kClocksPerRank * rank];
    chunk.claimed[rank] = clocks[kClocksPerRank * rank + 1];
  }
  progress.resume({chunk.sync->next, ranks});
  bool advanced = false;
  for (const Session& session : shard.sessions()) {
    if (!session.present) advanced = progress.leave(session.rank) || advanced;
  }
  for (const Session& session : shard.sessions()) {
    const bool is_parked = session.present && clocks[kClocksPerRank * session.rank + 2] != 0;
    const uint64_t read = progress.next(session.rank) - 1;
    if (!is_parked || (advanced && sync::releases(chunk.sync->spec, read, progress.slowest())))
      continue;
    progress.park(session.rank);
    ++shard.parked_count;
  }
  std::copy(clocks.begin() + static_cast<ptrdiff_t>(kClocksPerRank * ranks), clocks.end(),
            chunk.sync->updates);
  chunk.rounds_finished = progress.slowest();
  chunk.fanned_out_rounds = chunk.open_round();
}

void restore_pushed(const JobShard& shard, Chunk& chunk, const std::vector<uint64_t>& clocks) {
  for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
    const uint64_t* of_rank = &clocks[kClocksPerRank * rank];
    chunk.sync->pushed[rank] = {static_cast<uint32_t>(of_rank[0]), of_rank[1], of_rank[2]};
  }
}

}  // namespace

bool has_valid_clocks(const ChunkState& state, wire::SyncModel model, size_t ranks,
                      wire::Dtype dtype, uint32_t elements) {
  const std::vector<uint64_t>& clocks = state.clocks;
  const uint32_t least = wire::is_in_blocks(dtype) ? wire::block_layout(dtype).bytes : 1;
  if (state.fragment_bytes < least) return false;
  const uint32_t fragments = wire::fragment_count(
      wire::payload_bytes(dtype, elements), wire::fragment_bytes_of(dtype, state.fragment_bytes));
  if (fragments > limits::kFragmentCountMax) return false;
  const bool applies = wire::applies_on_arrival(model);
  if (clocks.size() != kClocksPerRank * ranks + (applies ? fragments : 0)) return false;
  const uint64_t full_mask = wire::full_mask(fragments);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const uint64_t* of_rank = &clocks[kClocksPerRank * rank];
    if ((of_rank[1] & ~full_mask) != 0) return false;
    if (applies && (of_rank[0] == 0 || of_rank[1] == full_mask || of_rank[2] > 1)) return false;
    if (!applies && (of_rank[2] & ~of_rank[1]) != 0) return false;
  }
  return true;
}

StateView view_of(const JobShard& shard, const Chunk& chunk) {
  PBOX_DCHECK(shard.mode == Mode::kOptimize && chunk.rounds_made() > 0);
  const size_t floats =
      optimizer::state_floats_per_element(shard.optimizer.kind) * size_t{chunk.elements};
  PBOX_DCHECK((floats > 0) == (chunk.optimizer_state != nullptr));
  return {.chunk = chunk.id,
          .rounds_finished = chunk.rounds_made(),
          .steps = chunk.steps(),
          .weights = {chunk.weights, chunk.elements},
          .optimizer_state = {chunk.optimizer_state, floats}};
}

std::optional<ChunkState> state_of(const JobShard& shard, const Chunk& chunk) {
  const bool awaits_weights = chunk.rounds_finished == 0 || chunk.copy_rank != kNoRank;
  if (awaits_weights && !chunk.is_stepped) return std::nullopt;
  ChunkState state = to_chunk_state(view_of(shard, chunk));
  state.fragment_bytes = shard.fragment_bytes;
  if (chunk.sync != nullptr) {
    for_each_clock(shard, chunk, [&](uint64_t clock) { state.clocks.push_back(clock); });
  }
  for_each_contributor(chunk, [&](uint16_t count) { state.contributors.push_back(count); });
  return state;
}

StateLayout block_layout_of(const JobShard& shard, uint32_t elements) {
  return StateLayout::block(shard.optimizer.kind, elements,
                            shard.is_relaxed() ? shard.worker_count() : 0);
}

void complete_block(const JobShard& shard, const Chunk& chunk) {
  PBOX_DCHECK(chunk.is_stepped && shard.mode == Mode::kOptimize && !chunk.applies_on_arrival());
  const StateLayout layout = block_layout_of(shard, chunk.elements);
  write_counters(chunk.weights, layout, chunk.rounds_made(), chunk.steps());
  if (chunk.sync == nullptr) return;
  ClockWriter writer(chunk.weights, layout, shard.fragment_bytes);
  for_each_contributor(chunk, [&](uint16_t count) { writer.add_contributor(count); });
  for_each_clock(shard, chunk, [&](uint64_t clock) { writer.add_clock(clock); });
}

void begin_from_snapshot(JobShard& shard, const ChunkState& state) {
  Chunk& chunk = new_chunk(shard, state);
  fill_weights(shard, chunk, state);
  if (chunk.applies_on_arrival()) {
    begin_fragments(shard, chunk, state);
  } else {
    fill_optimizer_state(shard, chunk, state);
  }
  chunk.is_restored = true;
  chunk.stateless_round = 0 - state.steps;
}

void adopt_optimizer_state(JobShard& shard, const ChunkState& state) {
  Chunk& chunk = new_chunk(shard, state);
  PBOX_CHECK(chunk.copy_rank != kNoRank);
  fill_optimizer_state(shard, chunk, state);
  chunk.stateless_round = chunk.first_round - state.steps;
}

void restore(JobShard& shard, const ChunkState& state) {
  Chunk& chunk = new_chunk(shard, state);
  PBOX_CHECK(state.rounds_finished > 0);
  PBOX_CHECK((chunk.sync == nullptr) == state.clocks.empty());
  fill_weights(shard, chunk, state);
  fill_optimizer_state(shard, chunk, state);
  chunk.rounds_finished = state.rounds_finished;
  chunk.fanned_out_rounds = chunk.open_round();
  chunk.first_round = state.rounds_finished - 1;
  chunk.stateless_round = state.rounds_finished - 1 - state.steps;
  const size_t slot = chunk.first_round & 1;
  restore_result(shard, chunk, slot);
  if (chunk.contributors[slot] != nullptr && state.fragment_bytes > 0) {
    restore_contributors(shard, chunk, state, chunk.contributors[slot]);
  }
  if (chunk.sync == nullptr) return;
  PBOX_CHECK(state.fragment_bytes == shard.fragment_bytes);
  if (chunk.sync->next != nullptr) {
    restore_progress(shard, chunk, state.clocks);
  } else {
    restore_pushed(shard, chunk, state.clocks);
  }
}

}  // namespace pbox::pipeline
