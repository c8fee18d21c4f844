// Compressed chunks whose results are changes of the weights.
#pragma once

#include "nic/wire/dtype.h"

namespace pbox::pipeline {

// A chunk in blocks in mode optimize. Its weights are those of the last result. A result in blocks
// is a delta: added to the weights of the round before, it gives the optimizer's own weights, but
// for what the blocks do not carry. Initial weights, and weights that a rank gives back, come in
// full (f32) and leave in full. The chunk's layout is always that of the open round.
//
// Invariants.
//
// * The form of a result is in the type of each of its packets: f32 is in full. A packet in full
//   may go to any rank at any time. A delta goes only to a rank that has the weights of the round
//   before.
// * With model bsp every rank has them, because the round has finished with every rank's push.
// * With model `drop` a rank has them if a part of its push was in time, because a rank pushes a
//   round that is open only with the result of the round before. Every other rank is sent the
//   weights in full: a rank that is late, that has missed rounds, that has begun a new session
//   since it pushed, or that asks for them (replies_in_full() in result_form.h).
// * A part that has moved, or that goes on from a snapshot, sends its last result in full to all
//   ranks. Then the rule is the same as elsewhere: the weights that move are those that ranks have.
struct ChunkDeltas {
  float* master = nullptr;               // the optimizer's own weights; null in other chunks
  wire::Dtype dtype = wire::Dtype::kQ8;  // the type of the deltas
  bool is_result_full = false;           // the last result is the weights: there is no delta
};

}  // namespace pbox::pipeline
