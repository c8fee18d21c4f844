// How a chunk in mode optimize lies in memory where a backup box has a copy of it (replicas = 1):
// the weights, the optimizer's state, and what is counted, one after the other in one block, so
// that all of it goes to the backup box as one tensor of f32, in place.
//
// The backup box sums tensors of a job of one rank, which changes no bit, and knows nothing of what
// is in them. Counts are written as numbers of 16 bits, which f32 holds exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pipeline/state/chunk_state.h"

namespace pbox::pipeline {

// From the block's begin, where the weights are, in f32.
struct BackupBlock {
  BackupBlock(optimizer::OptimizerKind kind, uint32_t elements);
  size_t state = 0;   // the optimizer's state
  size_t counts = 0;  // what seal() writes
  size_t floats = 0;  // of the whole block
};

// Of a chunk of this kind and size, as it is after so many rounds and steps. Any thread.
void seal(float* block, optimizer::OptimizerKind kind, uint32_t elements, uint64_t rounds_finished,
          uint64_t steps);

// What a block holds, of the chunk `chunk`; nothing if it is no sealed block. Any thread.
std::optional<ChunkState> unseal(std::span<const float> block, uint32_t chunk);

// A block that holds the state of a chunk so large. Any thread.
std::vector<float> block_of(const ChunkState& state, optimizer::OptimizerKind kind,
                            uint32_t elements);

}  // namespace pbox::pipeline
