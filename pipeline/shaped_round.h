// The rounds of slots, in jobs of collectives (nic/wire/collective.h). They are part of a shard's
// state. If a round has fewer fragments than its slot, the slot's other fragments count as pushed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/collective.h"

namespace pbox::pipeline {

struct ShapedRound {
  wire::RoundShape shape;
  bool is_shaped = false;     // some rank has pushed a part of the round
  uint32_t first_rank = 0;    // the rank whose push gave the shape
  uint32_t last_bytes = 0;    // payload bytes of the last fragment; 0 until a rank has pushed it
  uint32_t result_bytes = 0;  // on the wire; valid once the round is finished

  uint64_t mask() const {
    PBOX_DCHECK(is_shaped);
    return wire::full_mask(shape.fragment_count);
  }
  // True for sums and means of the types that reduce.h sums, which the numeric guard checks.
  bool is_gradient() const {
    return shape.combine <= wire::Combine::kMean &&
           static_cast<uint32_t>(shape.dtype) < wire::kDtypeCount;
  }
  // Returns the bytes that combining needs for each byte on the wire.
  uint32_t widening() const {
    PBOX_DCHECK(is_shaped);
    return shape.combine == wire::Combine::kCopy
               ? 1
               : wire::combined_bytes(shape.dtype) / wire::dtype_bytes(shape.dtype);
  }
};

// Two ranks whose pushes of one round have different shapes.
struct ShapeMismatch {
  uint32_t chunk = 0;
  uint32_t round = 0;  // modulo 2^32
  uint32_t first_rank = 0;
  uint32_t other_rank = 0;
};

}  // namespace pbox::pipeline
