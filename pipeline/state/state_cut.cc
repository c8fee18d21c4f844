#include "pipeline/state/state_cut.h"

#include <algorithm>

#include "base/check.h"
#include "pipeline/state/chunk_state.h"

namespace pbox::pipeline {

size_t StateCut::bytes_of(const JobShard& shard) {
  size_t bytes = 0;
  for (uint32_t index = 0; index < shard.chunk_count(); ++index) {
    bytes += state_values(shard.optimizer.kind, shard.elements(index)) * sizeof(float);
  }
  return bytes;
}

Result<std::unique_ptr<StateCut>> StateCut::create(const JobShard& shard, uint32_t round) {
  // Touched once and then written to a disk: hugepages are worth more elsewhere.
  auto arena = NumaArena::create(bytes_of(shard) + shard.chunk_count() * kCacheLineBytes,
                                 shard.arena().node(), Hugepages::kNever);
  if (!arena) return arena.error();
  auto cut = std::make_unique<StateCut>();
  cut->round_ = round;
  cut->arena_ = std::move(*arena);
  cut->is_missed_.resize(shard.chunk_count());
  for (uint32_t index = 0; index < shard.chunk_count(); ++index) {
    const size_t count = state_values(shard.optimizer.kind, shard.elements(index));
    cut->copies_.push_back(
        {.chunk = shard.chunk_id(index),
         .value_count = static_cast<uint32_t>(count),
         .values = reinterpret_cast<float*>(cut->arena_.take(count * sizeof(float)))});
  }
  return cut;
}

void StateCut::before_round(const JobShard& shard, const Chunk& chunk) {
  if (chunk.open_round() == round_) copy(shard, chunk);
}

void StateCut::look(const JobShard& shard, uint32_t copies_max) {
  const auto& chunks = shard.chunks();
  PBOX_CHECK(chunks.size() == copies_.size());
  const uint64_t enough = copied_.get() + copies_max;
  for (size_t looked = 0; looked < chunks.size() && copied_.get() < enough; ++looked) {
    const Chunk& chunk = chunks[next_];
    next_ = next_ + 1 == chunks.size() ? 0 : next_ + 1;
    if (wire::round_distance(chunk.open_round(), round_) >= 0) copy(shard, chunk);
  }
}

// Weights that a worker is still to give back are not here: those of this round never are.
void StateCut::copy(const JobShard& shard, const Chunk& chunk) {
  const uint32_t index = shard.index_of(chunk);
  Copy& copy = copies_[index];
  if (copy.is_here || is_missed_[index]) return;
  if (chunk.open_round() != round_ || chunk.copy_rank != kNoRank || chunk.is_stepped) {
    is_missed_[index] = true;
    missed_.add(1);
    return;
  }
  float* values = copy.values;
  std::copy_n(chunk.weights, chunk.elements, values);
  if (chunk.state != nullptr) {
    std::copy_n(chunk.state, copy.value_count - chunk.elements, values + chunk.elements);
  }
  copy.steps = chunk.steps();
  copy.is_here = true;
  copied_.add(1);
}

}  // namespace pbox::pipeline
