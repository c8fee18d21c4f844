// How a live chunk in mode optimize gives its state to another box, and how a new chunk begins with
// a state from elsewhere. Control thread, while no pipeline has the shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "pipeline/job_shard.h"
#include "pipeline/state/state_codec.h"

namespace pbox::pipeline {

// Returns true if `state.clocks` can belong to a chunk of this model, in a relaxed job of so many
// ranks. `dtype`: the type of its gradients on the wire. The clocks come from another box. Chunks
// of other jobs have none.
bool has_valid_clocks(const ChunkState& state, wire::SyncModel model, size_t ranks,
                      wire::Dtype dtype, uint32_t elements);

// Returns a view of the chunk's weights, optimizer state and counters, in place. The weights must
// be loaded. The pipeline may call this too.
StateView view_of(const JobShard& shard, const Chunk& chunk);

// Returns the chunk's state; nullopt if its weights are not loaded yet.
std::optional<ChunkState> state_of(const JobShard& shard, const Chunk& chunk);

// Completes the block of a replicated chunk whose open round is stepped: its counters and clocks.
// On the data path.
void complete_block(const JobShard& shard, const Chunk& chunk);
// Returns the block's layout.
StateLayout block_layout_of(const JobShard& shard, uint32_t elements);

// Each of the following gives a new chunk of a shard a state from elsewhere, before the shard is
// installed. The state belongs to a chunk with as many elements, and to the job's optimizer.

// From a snapshot: the first round of the chunk gives the state's weights, and the optimizer
// continues with the state's optimizer state and steps.
void begin_from_snapshot(JobShard& shard, const ChunkState& state);

// For a chunk whose weights a worker gives back: the optimizer continues with the state's optimizer
// state and steps. The state's weights are older, and ignored.
void adopt_optimizer_state(JobShard& shard, const ChunkState& state);

// From another box: the chunk continues after the state's last round. Its next round is open, and a
// worker that lacks the last result is sent it. `state.clocks` must be valid (has_valid_clocks)
// and, if there are any, `state.fragment_bytes` must equal the shard's.
void restore(JobShard& shard, const ChunkState& state);

}  // namespace pbox::pipeline
