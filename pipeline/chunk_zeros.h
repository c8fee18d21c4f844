// The fragments of a chunk that ranks or the box name because they are zero (nic/wire/zeros.h).
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace pbox::pipeline {

struct ChunkZeros {
  // Fragments of the open round that some rank has named. No element of their sums is -0 from then
  // on, as if the zeros had been added.
  uint64_t named = 0;
  // Mode aggregate: by round & 1, the fragments of a result that are zero. Only fragments that some
  // rank has named are considered.
  uint64_t results[limits::kSlotRing] = {};
};

}  // namespace pbox::pipeline
