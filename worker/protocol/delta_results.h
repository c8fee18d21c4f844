// Results of tensors in mode optimize that are compressed: weights in full, or deltas
// (delta_weights.h). Parts of Exchange; the thread that drives it.
#pragma once

#include "nic/wire/header.h"
#include "worker/protocol/exchange_state.h"
#include "worker/protocol/lane.h"

namespace pbox::worker {

// Sees to it that the chunk, which is in flight, takes the form of a result that has come. Returns
// false if it is of no use. A delta is useless without the weights of the round before, which a
// process that has taken a lost rank's place may lack: it asks for the weights then.
bool accept_form(ExchangeState& state, Lane& lane, ExchangeChunk& chunk, const wire::Header& header,
                 uint64_t now_ns);

// Stores a fragment of a result, which has the chunk's form.
void store_delta(ExchangeTensor& tensor, const ExchangeChunk& chunk, const wire::Parsed& parsed);

// The chunk's result is complete: writes the weights after it into the output.
void read_weights(const ExchangeState& state, ExchangeTensor& tensor, const ExchangeChunk& chunk);

}  // namespace pbox::worker
