#include "worker/protocol/delta_results.h"

#include <cstring>

#include "base/check.h"
#include "worker/protocol/result_copy.h"

namespace pbox::worker {

bool accept_form(ExchangeState& state, Lane& lane, ExchangeChunk& chunk, const wire::Header& header,
                 uint64_t now_ns) {
  PBOX_DCHECK(state.tensors[chunk.tensor].deltas && chunk.in_flight);
  const bool is_full = (header.dtype_scale & 15) == static_cast<uint16_t>(wire::Dtype::kF32);
  const DeltaWeights& deltas = *state.tensors[chunk.tensor].deltas;
  const uint64_t first = chunk.offset / sizeof(float);
  const auto held_round = deltas.round(first);
  const bool has_base = held_round == header.round - 1 || held_round == header.round;
  const bool lacks_base = !is_full && !has_base;
  if (chunk.is_full == is_full && !lacks_base) return true;
  if (chunk.is_full) return false;
  lane.drop_unsent(state.chunk_id(chunk));
  if (lane.cancel_sending(chunk)) lane.arm(chunk, now_ns);
  state.set_full(chunk, true);
  if (is_full) return true;
  lane.end_wait(chunk, true, now_ns);
  lane.pull(chunk, now_ns);
  return false;
}

void store_delta(ExchangeTensor& tensor, const ExchangeChunk& chunk, const wire::Parsed& parsed) {
  const uint32_t begin = parsed.header.fragment * chunk.fragment_bytes;
  const uint32_t bytes = parsed.header.payload_bytes;
  PBOX_DCHECK(begin + bytes <= chunk.wire_bytes);
  const uint64_t first = chunk.offset / sizeof(float);
  if (chunk.is_full) {
    tensor.deltas->store_full(first, begin, parsed.payload, bytes);
  } else {
    tensor.deltas->store_delta(first, begin, parsed.payload, bytes);
  }
}

void read_weights(const ExchangeState& state, ExchangeTensor& tensor, const ExchangeChunk& chunk) {
  const uint64_t first = chunk.offset / sizeof(float);
  PBOX_DCHECK(tensor.deltas && tensor.output != nullptr);
  if (chunk.is_full) {
    tensor.deltas->take(first, chunk.flight_round);
  } else if (tensor.deltas->round(first) != chunk.flight_round) {  // it is not added twice
    tensor.deltas->add(first, chunk.elements, chunk.flight_round);
  }
  const auto* const weights = reinterpret_cast<const std::byte*>(tensor.deltas->weights(first));
  const size_t bytes = chunk.elements * sizeof(float);
  if (state.out_of_cache) {
    copy_past_cache(tensor.output + chunk.offset, weights, bytes);
  } else {
    std::memcpy(tensor.output + chunk.offset, weights, bytes);
  }
}

}  // namespace pbox::worker
