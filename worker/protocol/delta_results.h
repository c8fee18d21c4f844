// Results of tensors in mode optimize that are compressed: weights in full, or deltas
// (delta_weights.h). These functions are parts of Exchange, used by the thread that drives it.
//
// Invariants.
//
// * A chunk's weights are those of one round, or of none while weights in full are arriving.
// * A delta is added to the weights of the round before, and never to others. Weights of the
//   delta's own round contain it: then it only confirms them. With model `drop` the box may answer
//   a push with a result that the worker has read already, and results may be of any later round
//   than the push.
// * Once a packet of weights in full has arrived, the chunk takes only such packets until the
//   result is complete, and its PULLs ask for weights in full.
#pragma once

#include "nic/wire/header.h"
#include "worker/protocol/exchange_state.h"
#include "worker/protocol/lane.h"

namespace pbox::worker {

// Makes the chunk, which is in flight, take the form of a result that has arrived. Returns false if
// the result is of no use. A delta is useless without the weights of its own round or of the round
// before. A process in a lost rank's place may lack them, and then asks for the weights in full.
bool accept_form(ExchangeState& state, Lane& lane, ExchangeChunk& chunk, const wire::Header& header,
                 uint64_t now_ns);

// Stores a fragment of a result, which has the chunk's form.
void store_delta(ExchangeTensor& tensor, const ExchangeChunk& chunk, const wire::Parsed& parsed);

// Applies the chunk's result, which is complete, and writes the new weights into the output.
void read_weights(const ExchangeState& state, ExchangeTensor& tensor, const ExchangeChunk& chunk);

}  // namespace pbox::worker
