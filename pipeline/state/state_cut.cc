#include "pipeline/state/state_cut.h"

#include <algorithm>

#include "base/check.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::pipeline {

namespace {

uint32_t fragment_elements(const JobShard& shard, const Chunk& chunk) {
  return static_cast<uint32_t>(shard.fragment_elements(chunk, 0));
}

}  // namespace

size_t StateCut::bytes_of(const JobShard& shard) {
  size_t bytes = 0;
  for (uint32_t index = 0; index < shard.chunk_count(); ++index) {
    bytes += state_values(shard.optimizer.kind, shard.elements(index)) * sizeof(float);
  }
  return bytes;
}

Result<std::unique_ptr<StateCut>> StateCut::create(const JobShard& shard, uint32_t round) {
  // The memory is written once and then read once, so hugepages would be wasted on it.
  auto arena = NumaArena::create(bytes_of(shard) + shard.chunk_count() * kCacheLineBytes,
                                 shard.arena().node(), Hugepages::kNever);
  if (!arena) return arena.error();
  auto cut = std::make_unique<StateCut>();
  cut->round_ = round;
  cut->arena_ = std::move(*arena);
  cut->is_missed_.resize(shard.chunk_count());
  cut->copies_.resize(shard.chunk_count());
  for (uint32_t index = 0; index < shard.chunk_count(); ++index) {
    const size_t count = state_values(shard.optimizer.kind, shard.elements(index));
    auto* values = reinterpret_cast<float*>(cut->arena_.take(count * sizeof(float)));
    cut->memory_.emplace_back(values, count);
  }
  return cut;
}

void StateCut::copy_before_round(const JobShard& shard, const Chunk& chunk) {
  if (chunk.open_round() == round_) copy(shard, chunk);
}

void StateCut::copy_resting(const JobShard& shard) {
  const auto& chunks = shard.chunks();
  PBOX_CHECK(chunks.size() == copies_.size());
  const size_t looks = std::min(chunks.size(), kLookedMax);
  size_t bytes = 0;
  for (size_t looked = 0; looked < looks && bytes < kCopiedBytesMax; ++looked) {
    PBOX_DCHECK(next_ < chunks.size());
    const Chunk& chunk = chunks[next_];
    next_ = next_ + 1 == chunks.size() ? 0 : next_ + 1;
    if (wire::round_distance(chunk.open_round(), round_) >= 0) bytes += copy(shard, chunk);
  }
}

// Copies the chunk, or notes that it has missed the cut. Returns the bytes copied. A chunk whose
// weights a worker must still give back has missed it, and will never have the cut's weights.
size_t StateCut::copy(const JobShard& shard, const Chunk& chunk) {
  const uint32_t index = shard.index_of(chunk);
  PBOX_DCHECK(index < copies_.size() && shard.chunk_id(index) == chunk.id);
  if (copies_[index].rounds_finished > 0 || is_missed_[index]) return 0;
  if (chunk.open_round() != round_ || chunk.copy_rank != kNoRank || chunk.is_stepped) {
    is_missed_[index] = true;
    missed_.add(1);
    return 0;
  }
  const StateLayout layout = StateLayout::packed(shard.optimizer.kind, chunk.elements);
  const StateView state = view_of(shard, chunk);
  encode(state, layout, memory_[index]);
  if (chunk.applies_on_arrival()) {
    join_fragments(state.optimizer_state, chunk.elements, fragment_elements(shard, chunk),
                   memory_[index].subspan(layout.optimizer_state, layout.optimizer_floats));
  }
  StateView& copy = copies_[index];
  copy = *decode(memory_[index], layout);
  copy.chunk = state.chunk;
  copy.rounds_finished = state.rounds_finished;
  copy.steps = state.steps;
  if (chunk.applies_on_arrival()) {
    copy.steps = *std::min_element(chunk.sync->updates, chunk.sync->updates + chunk.fragment_count);
  }
  copied_.add(1);
  PBOX_DCHECK(copied() + missed() <= chunk_count());
  return memory_[index].size_bytes();
}

}  // namespace pbox::pipeline
