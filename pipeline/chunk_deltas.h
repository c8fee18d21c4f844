// Compressed chunks whose results are changes of the weights.
#pragma once

#include "nic/wire/dtype.h"

namespace pbox::pipeline {

// A chunk in blocks in mode optimize. Chunk::weights are those of the last result, which ranks
// have. A result in blocks is a delta: added to the weights of the round before, it gives the
// optimizer's own weights, except for what rounding takes. Initial weights, and weights that a rank
// gives back, arrive and leave in full (f32). The chunk's layout is always that of the open round.
//
// Invariants.
//
// * The type of each packet of a result shows its form: f32 means weights in full. Such a packet
//   may go to any rank at any time. A delta goes only to a rank that has the weights of the round
//   before.
// * With model bsp every rank has them, because the round has finished with every rank's push.
// * With model `drop` a rank has them if a part of its push was in time, because a rank pushes a
//   round that is open only with the result of the round before. Every other rank is sent the
//   weights in full: a rank that is late, that has missed rounds, that has begun a new session
//   since it pushed, or that asks for them (replies_in_full() in result_form.h).
// * A part that has moved, or that starts from a snapshot, sends its last result in full to all
//   ranks. After that the same rules hold, because a part moves with the weights that ranks have.
struct ChunkDeltas {
  float* master = nullptr;               // the optimizer's own weights; null without deltas
  wire::Dtype dtype = wire::Dtype::kQ8;  // the type of the deltas
  bool is_result_full = false;           // the last result is weights in full, not a delta
};

}  // namespace pbox::pipeline
