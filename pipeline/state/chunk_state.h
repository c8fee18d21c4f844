// Takes the state of a live chunk in mode optimize, and gives a new chunk a state. The control
// thread calls this while no pipeline has the shard, unless a declaration says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "pipeline/job_shard.h"
#include "pipeline/state/state_codec.h"

namespace pbox::pipeline {

// Returns true if `state.clocks`, which come from another box, can belong to a chunk of this model
// in a relaxed job with this many ranks. `dtype`: the type of its gradients on the wire. Chunks of
// jobs that are not relaxed have no clocks.
bool has_valid_clocks(const ChunkState& state, wire::SyncModel model, size_t ranks,
                      wire::Dtype dtype, uint32_t elements);

// Returns a view of the chunk's weights, optimizer state and counters, in place. The weights must
// be loaded. The pipeline may call this too.
StateView view_of(const JobShard& shard, const Chunk& chunk);

// Returns the chunk's state; nullopt if its weights are not loaded yet.
std::optional<ChunkState> state_of(const JobShard& shard, const Chunk& chunk);

// Writes counters and clocks into the block of a replicated chunk whose open round is stepped. The
// pipeline calls it, on the data path.
void complete_block(const JobShard& shard, const Chunk& chunk);
// Returns the layout of the block of a chunk with this many elements.
StateLayout block_layout_of(const JobShard& shard, uint32_t elements);

// The following functions give a state to a new chunk of a shard, before the shard is installed.
// The state must be that of a chunk with as many elements and of the job's optimizer.

// From a snapshot: the result of the chunk's first round is the state's weights, and the optimizer
// continues with the state's optimizer state and steps.
void begin_from_snapshot(JobShard& shard, const ChunkState& state);

// For a chunk whose weights a worker gives back: the optimizer continues with the state's optimizer
// state and steps. The state's weights are ignored, because they are older.
void adopt_optimizer_state(JobShard& shard, const ChunkState& state);

// From another box: the chunk continues after the state's last round. Its next round is open, and a
// worker that lacks the last result is sent it. `state.clocks` must be valid (has_valid_clocks)
// and, if there are any, `state.fragment_bytes` must equal the shard's.
void restore(JobShard& shard, const ChunkState& state);

}  // namespace pbox::pipeline
