// The weights of a compressed tensor in mode optimize, as all ranks have them. A result is a delta
// to add to them, in blocks (nic/wire/blocks.h), or the weights themselves, in full. Weights come
// in full at the start of the job, from a box that has lost its state, for a new process that
// fetches them, and with model `drop` for a rank whose push was not in time. Deltas arrive fragment
// by fragment and are added once a chunk is complete, so that the weights of its last round stay
// whole until then. Used on the exchange's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/check.h"
#include "nic/wire/blocks.h"

namespace pbox::worker {

class DeltaWeights {
 public:
  // `elements`: number in the tensor's piece that this exchange has, in chunks of `chunk_elements`.
  DeltaWeights(wire::Dtype dtype, uint64_t elements, uint32_t chunk_elements);

  // Returns the round whose result a chunk's weights are; nullopt while they belong to no round.
  // `first`, here and below, is the index of a chunk's first element in the piece.
  std::optional<uint32_t> round(uint64_t first) const { return rounds_[chunk_of(first)]; }
  // Returns a chunk's weights, in full.
  const float* weights(uint64_t first) const { return weights_.data() + first; }

  // Stores a part of a chunk's weights, from byte `begin` of the chunk on. The chunk's weights then
  // belong to no round until take().
  void store_full(uint64_t first, uint32_t begin, const std::byte* bytes, size_t count);
  // Stores a part of a delta, from byte `begin` of the chunk's blocks on.
  void store_delta(uint64_t first, uint32_t begin, const std::byte* bytes, size_t count);

  // Takes the weights, all of which have been stored, as the result of this round.
  void take(uint64_t first, uint32_t round) { rounds_[chunk_of(first)] = round; }
  // Adds the delta to the result of this round, all of which has been stored. The chunk has `count`
  // elements, and must have the weights of the round before.
  void add(uint64_t first, uint32_t count, uint32_t round);

 private:
  size_t chunk_of(uint64_t first) const {
    PBOX_DCHECK(first % chunk_elements_ == 0 && first < weights_.size());
    return first / chunk_elements_;
  }
  std::byte* blocks(uint64_t first) { return blocks_.data() + chunk_of(first) * chunk_bytes_; }

  wire::Dtype dtype_;
  uint32_t chunk_elements_;
  uint32_t chunk_bytes_;  // the size of a whole chunk, in blocks
  std::vector<float> weights_;
  std::vector<std::byte> blocks_;
  std::vector<std::optional<uint32_t>> rounds_;  // by chunk
};

}  // namespace pbox::worker
