// What another box needs to go on with a chunk in mode optimize where this one has left it: the
// weights, the optimizer's state and steps; where the model is not BSP, what each rank has pushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

struct ChunkState {
  uint32_t chunk = 0;            // job-local id
  uint64_t rounds_finished = 1;  // of which the last gave the weights
  uint64_t steps = 0;            // that the optimizer has taken upon its state
  std::vector<float> values;     // the weights, then state_floats_per_element as many
  // By fragment of fragment_bytes, how many workers are in the last result; empty where nobody
  // counts.
  std::vector<uint16_t> contributors;
  uint32_t fragment_bytes = 0;
  // Where the model is not BSP, of each rank in turn: applied on arrival, the round that it pushes
  // next (UINT64_MAX: it is gone for good), which fragments of that are in the weights, whether its
  // read waits; model drop, a sync::Pushed. Then, applied on arrival, by fragment how often the
  // optimizer has stepped it. Both are of fragments of fragment_bytes, whatever the path.
  std::vector<uint64_t> clocks = {};
};

inline constexpr size_t kClocksPerRank = 3;

// Whether `clocks` can be those of a chunk of `wire_bytes`, in a job of that model and as many
// ranks. They come from another box.
bool are_clocks(const ChunkState& state, wire::SyncModel model, size_t ranks, uint32_t wire_bytes);

// As the chunk is; nothing if its weights are not here yet. Control thread, and no pipeline has the
// shard.
std::optional<ChunkState> state_of(const JobShard& shard, const Chunk& chunk);

// How many values a state of the chunk has. Control thread.
size_t state_values(optimizer::OptimizerKind kind, uint32_t elements);

// The chunk of a shard that is new begins with the weights and the optimizer's state of a snapshot:
// its first round gives these weights, and the optimizer counts on from its steps. The state is of
// a chunk with as many elements, and of the job's optimizer. Control thread, before the shard is
// installed.
void begin_with(JobShard& shard, const ChunkState& state);

// The chunk of a shard that is new, whose weights a worker gives back, goes on with the momentum or
// moments of an older state, and counts on from its steps. Control thread, before the shard is
// installed.
void go_on_with_moments(JobShard& shard, const ChunkState& state);

// The chunk of a shard that is new goes on from there: its next round is open, the result of the
// last is given to who lacks it. The state is of a chunk with as many elements, and of the job's
// optimizer; with clocks, are_clocks, and of the shard's fragment_bytes. Control thread, before the
// shard is installed.
void restore(JobShard& shard, const ChunkState& state);

}  // namespace pbox::pipeline
