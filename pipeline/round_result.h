// The values of a round's result. In mode optimize the optimizer runs on the chunk while its sum is
// in the core's cache (PHub: Luo et al., SoCC 2018, "tall" aggregation, section 3.2). The
// pipeline's core calls everything here.
#pragma once

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// Numerics `ordered`: adds the pushes that were kept, in the order of ranks, so that the sum does
// not depend on the order of arrival. A fragment's sum leaves out ranks that have not pushed it.
void add_in_order(JobShard& shard, Chunk& chunk, uint64_t now_ns);

// Models that apply pushes on arrival: steps elements of a fragment, from `offset` in the chunk on,
// by the gradient in shard.gradient.
void step_on_arrival(JobShard& shard, Chunk& chunk, uint32_t fragment, size_t offset,
                     size_t elements);

// Gated shards: adds up the squares of the complete sum, or of the mean, and holds the chunk in the
// shard's gate. The squares of a round that the guard rejects are infinite. Once there is a
// verdict, call make_result().
void measure_round(JobShard& shard, Chunk& chunk);

// Makes the result of the open round: the sum or mean, or the weights after the step. Releases a
// chunk that was held.
void make_result(JobShard& shard, Chunk& chunk);

}  // namespace pbox::pipeline
