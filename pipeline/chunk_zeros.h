// The fragments of a chunk that ranks and box name because they are zero (nic/wire/zeros.h).
#pragma once

#include <cstdint>

#include "base/limits.h"

namespace pbox::pipeline {

struct ChunkZeros {
  // Fragments of the open round that some rank has named. No element of their sums is -0 from then
  // on, as if the zeros had been added.
  uint64_t named = 0;
  // Mode aggregate: fragments of a result that are zero, by round & 1, among those that some rank
  // has named.
  uint64_t results[limits::kSlotRing] = {};
};

}  // namespace pbox::pipeline
