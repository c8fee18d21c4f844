// Compressed chunks whose results are changes of the weights.
#pragma once

#include "nic/wire/dtype.h"

namespace pbox::pipeline {

// A chunk in blocks in mode optimize. Its weights are those that all ranks have. A result in blocks
// is a delta: it takes them to the optimizer's own weights, but for what the blocks do not carry.
// Initial weights and those that a rank gives back come in full (f32), and leave so. The chunk's
// layout is always that of the open round.
struct ChunkDeltas {
  float* master = nullptr;               // the optimizer's own weights; null in other chunks
  wire::Dtype dtype = wire::Dtype::kQ8;  // the type of the deltas
  bool is_result_full = false;           // the last result is the weights: there is no delta
};

}  // namespace pbox::pipeline
