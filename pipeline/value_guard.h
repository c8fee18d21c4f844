// The numeric guard (nic/wire/guard.h) on the data path: finds unsound values while they are added,
// and measures gradients. A fragment counts once, so the guard sees it once. The pipeline's core
// calls everything here.
#pragma once

#include "nic/quantize/quantize.h"
#include "pipeline/job_shard.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

// Returns what gradient_kernel() returns, for a fragment in blocks.
inline quantize::AccumulateFunction block_kernel(const wire::GuardSpec& guard, wire::Dtype dtype,
                                                 bool is_first) {
  const quantize::Kernels& kernels = quantize::kernels();
  const bool zeroes = guard.policy == wire::Guard::kZero;
  const auto& store = zeroes ? kernels.store_sound : kernels.store;
  const auto& add = zeroes ? kernels.add_sound : kernels.add;
  return is_first ? store[quantize::format_index(dtype)] : add[quantize::format_index(dtype)];
}

// Returns the kernel that takes a gradient's fragment. `is_first`: no rank has pushed it yet.
inline reduce::AccumulateFunction gradient_kernel(const reduce::Kernels& kernels,
                                                  const wire::GuardSpec& guard, wire::Dtype dtype,
                                                  bool is_first) {
  if (wire::is_in_blocks(dtype)) return block_kernel(guard, dtype, is_first);
  const auto type = static_cast<size_t>(dtype);
  PBOX_DCHECK(type < wire::kDtypeCount);
  if (guard.policy == wire::Guard::kZero) [[unlikely]] {
    return is_first ? kernels.store_sound[type] : kernels.add_sound[type];
  }
  return is_first ? kernels.store[type] : kernels.add[type];
}

// Called when a push of the rank contains an unsound value. Counts it. With guard `reject`, also
// rejects the round if the shard is gated, else the push. `round`: the push's, modulo 2^32.
void note_unsound(JobShard& shard, Session& session, Chunk& chunk, uint32_t round, uint64_t now_ns);

// Adds the squares of a gradient's fragment to the rank's sum. Called in the rounds that are
// measured (GradientSquares).
void measure_gradient(const reduce::Kernels& kernels, const JobShard& shard, Session& session,
                      const Chunk& chunk, const wire::Parsed& parsed);

}  // namespace pbox::pipeline
