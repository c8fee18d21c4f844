// The weights of the pushes that are in a chunk's sum (nic/wire/push_weight.h). The pipeline's own
// core calls everything here.
#pragma once

#include <bit>

#include "nic/wire/push_weight.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

// Returns the code of a push's weight; 0 in jobs whose pushes have none.
inline uint32_t weight_code_of(const Chunk& chunk, const wire::Header& header) {
  return chunk.weight_sums != nullptr ? wire::weight_code(header) : 0;
}

// Adds the weight of a PUSH or ZEROS to the sums of these fragments. Called before claimed_any has
// the fragments, because the first push of a fragment replaces the sum of an earlier round.
inline void add_weight(Chunk& chunk, const wire::Header& header, uint64_t fragments) {
  if (chunk.weight_sums == nullptr || header.type() == wire::PacketType::kState) [[likely]]
    return;
  PBOX_DCHECK((fragments & ~chunk.full_mask) == 0);
  const uint64_t weight = wire::push_weight(wire::weight_code(header));
  for (uint64_t left = fragments; left != 0; left &= left - 1) {
    const auto fragment = static_cast<size_t>(std::countr_zero(left));
    const bool is_first = (chunk.claimed_any >> fragment & 1) == 0;
    chunk.weight_sums[fragment] = weight + (is_first ? 0 : chunk.weight_sums[fragment]);
    PBOX_DCHECK(chunk.weight_sums[fragment] >= weight);
  }
}

}  // namespace pbox::pipeline
