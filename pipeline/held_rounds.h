// Rounds of gated shards that wait for a verdict (step_gate.h). The pipeline's core calls
// everything here.
#pragma once

#include <cstddef>

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// Holds a round whose sum is complete. Reports the round once all chunks of the shard are held.
// Returns false if there is a verdict on the round already, so that it can be completed now.
bool hold_round(JobShard& shard, Chunk& chunk);

// Returns the next chunk whose round was held and has its verdict now. Adds one to `work` for each
// chunk that it looks at. Null if there is none, or if `work` has reached `work_max`.
Chunk* next_with_verdict(JobShard& shard, size_t& work, size_t work_max);

}  // namespace pbox::pipeline
