// Compressed chunks whose results are changes of the weights.
#pragma once

#include "nic/wire/dtype.h"

namespace pbox::pipeline {

// A chunk in blocks in mode optimize. Its weights are those that all ranks have. A result in blocks
// is a delta: added to these weights, it gives the optimizer's own weights, but for what the blocks
// do not carry. Initial weights, and weights that a rank gives back, come in full (f32) and leave
// in full. The chunk's layout is always that of the open round.
struct ChunkDeltas {
  float* master = nullptr;               // the optimizer's own weights; null in other chunks
  wire::Dtype dtype = wire::Dtype::kQ8;  // the type of the deltas
  bool is_result_full = false;           // the last result is the weights: there is no delta
};

}  // namespace pbox::pipeline
