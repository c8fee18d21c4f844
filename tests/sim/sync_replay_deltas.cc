// SyncReplay's layout of a round's fragments, and its rules for compressed chunks of model `drop`:
// which deltas a box must make, and to which ranks it must send the weights in full instead.
#include <algorithm>
#include <cfloat>
#include <cstring>

#include "nic/quantize/reference.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/push_weight.h"
#include "pipeline/optimizer/reference.h"
#include "pipeline/reduce/reference.h"
#include "tests/sim/sync_replay.h"
#include "tests/sim/violation.h"

namespace pbox::sim {

bool SyncReplay::names_f32(const wire::Header& header) {
  return (header.dtype_scale & 15) == static_cast<uint16_t>(wire::Dtype::kF32);
}

wire::Dtype SyncReplay::dtype_of(const Chunk& chunk) const {
  return job_.wire_dtype(chunk.held->id, static_cast<uint32_t>(chunk.clock));
}

uint32_t SyncReplay::fragment_count(const Chunk& chunk) const {
  return wire::fragment_count(wire::payload_bytes(dtype_of(chunk), chunk.held->elements),
                              wire::fragment_bytes_of(dtype_of(chunk), shard_.fragment_bytes));
}

uint32_t SyncReplay::first_of(const Chunk& chunk, uint32_t fragment) const {
  const wire::Dtype dtype = dtype_of(chunk);
  const uint32_t stride = wire::fragment_bytes_of(dtype, shard_.fragment_bytes);
  return fragment * wire::payload_elements(dtype, stride);
}

// Returns the number of elements in a fragment. The last block may have room for more elements than
// the chunk has.
uint32_t SyncReplay::elements_of(const Chunk& chunk, uint32_t fragment) const {
  const wire::Dtype dtype = dtype_of(chunk);
  const uint32_t stride = wire::fragment_bytes_of(dtype, shard_.fragment_bytes);
  return std::min(wire::payload_elements(dtype, stride),
                  chunk.held->elements - first_of(chunk, fragment));
}

std::span<float> SyncReplay::part(std::vector<float>& values, const Chunk& chunk,
                                  uint32_t fragment) const {
  return {values.data() + first_of(chunk, fragment), elements_of(chunk, fragment)};
}

void SyncReplay::add(Chunk& chunk, uint32_t rank, const wire::Parsed& parsed) const {
  const uint32_t fragment = parsed.header.fragment;
  const wire::Dtype dtype = dtype_of(chunk);
  std::vector<float> values(elements_of(chunk, fragment));
  if (wire::is_in_blocks(dtype)) {
    for (size_t index = 0; index < values.size(); ++index) {
      values[index] = quantize::reference::load_element(dtype, parsed.payload, index);
    }
  } else {
    reduce::reference::store(dtype, values.data(), parsed.payload, values.size(), FLT_MAX);
  }
  if (applies_on_arrival(chunk)) {
    step(chunk, fragment, values);
  } else if (chunk.clock > 0) {
    const auto sums = part(chunk.sums, chunk, fragment);
    for (size_t index = 0; index < sums.size(); ++index) sums[index] += values[index];
    chunk.weight_sums[fragment] += wire::push_weight(wire::weight_code(parsed.header));
  } else if (rank == 0) {
    std::copy(values.begin(), values.end(), part(chunk.weights, chunk, fragment).begin());
  }
}

// Called for a chunk that has moved here with the weights that ranks have, and no delta. Its
// optimizer continues from them.
void SyncReplay::begin_deltas(Chunk& chunk) const {
  chunk.master = chunk.weights;
  const auto round = job_.deltas->round_of(
      chunk.held->id, reinterpret_cast<const std::byte*>(chunk.weights.data()));
  require(round && *round + 1 >= chunk.clock,
          [&] { return place(chunk) + ": begins with weights that no box has made"; });
}

// Notes a PULL. A rank that asks for weights in full is sent no delta before it is in time again.
void SyncReplay::note_pull(Chunk& chunk, uint32_t rank, const wire::Header& header) const {
  const auto clock = static_cast<uint32_t>(chunk.clock);
  if (!names_f32(header) || chunk.clock == 0) return;
  if (wire::round_distance(header.round, clock) < 0) chunk.lacking |= 1u << rank;
}

// Makes the result of the open round, and the weights that ranks have with it.
void SyncReplay::make_delta(Chunk& chunk) {
  const uint32_t id = chunk.held->id;
  const auto round = static_cast<uint32_t>(chunk.clock);
  if (round == 0) {
    chunk.master = chunk.weights;
  } else {
    const optimizer::OptimizerSpec spec = optimizer_of(job_.options);
    const optimizer::StepParameters parameters{.learning_rate = spec.learning_rate,
                                               .weight_decay = spec.weight_decay,
                                               .gradient_scale = 1,
                                               .step = round};
    for (uint32_t fragment = 0; fragment < fragment_count(chunk); ++fragment) {
      divide_by_weights(chunk, fragment, part(chunk.sums, chunk, fragment));
    }
    optimizer::reference::step(spec.kind, optimizer::step_coefficients(spec, parameters),
                               chunk.master.data(), nullptr, chunk.sums.data(), chunk.sums.size());
    std::vector<float> difference(chunk.weights.size());
    std::transform(chunk.weights.begin(), chunk.weights.end(), difference.begin(),
                   [](float weight) { return -weight; });
    chunk.delta = job_.blocks->result_of(id, round, chunk.master, difference);
    quantize::reference::accumulate(job_.blocks->dtype(id), chunk.weights.data(),
                                    chunk.delta.data(), chunk.weights.size(), FLT_MAX, true, false);
  }
  job_.deltas->record(id, round, chunk.weights);
}

// Returns the bits of all fragments of a round of gradients.
uint64_t SyncReplay::delta_mask(const Chunk& chunk) const {
  const wire::Dtype dtype = job_.wire_dtype(chunk.held->id, 1);
  return wire::full_mask(
      wire::fragment_count(wire::payload_bytes(dtype, chunk.held->elements),
                           wire::fragment_bytes_of(dtype, shard_.fragment_bytes)));
}

// Adapts the masks of pushes when the round of initial weights closes, because the rounds after it
// have a different number of fragments.
void SyncReplay::recut_pushes(Chunk& chunk) const {
  if (chunk.clock != 0) return;
  const uint64_t whole_push = full_mask(chunk);
  for (Pushed& pushed : chunk.pushed) {
    pushed.mask = pushed.mask == whole_push ? delta_mask(chunk) : 0;
    pushed.counted &= pushed.mask;
  }
}

bool SyncReplay::replies_in_full(const Chunk& chunk, uint32_t rank) const {
  const Pushed& pushed = chunk.pushed[rank];
  const bool was_in_time =
      pushed.round + 1 == static_cast<uint32_t>(chunk.clock) && pushed.counted != 0;
  return chunk.delta.empty() || !was_in_time || (chunk.lacking >> rank & 1) != 0;
}

// Checks a RESULT of a compressed chunk. Weights in full are right for every rank.
void SyncReplay::check_delta_sent(const Chunk& chunk, uint32_t rank,
                                  const nic::TxPacket& packet) const {
  const wire::Header& header = packet.header;
  const auto who = [&] { return place(chunk) + ", sent to rank " + std::to_string(rank) + ": "; };
  const bool is_full = names_f32(header);
  require(is_full || !replies_in_full(chunk, rank),
          [&] { return who() + "a delta, although it may lack the weights of the round before"; });
  const wire::Dtype dtype = is_full ? wire::Dtype::kF32 : job_.blocks->dtype(chunk.held->id);
  const size_t stride = wire::fragment_bytes_of(dtype, shard_.fragment_bytes);
  const size_t begin = header.fragment * stride;
  const size_t bytes = wire::payload_bytes(dtype, chunk.held->elements);
  const auto* const from =
      is_full ? reinterpret_cast<const std::byte*>(chunk.weights.data()) : chunk.delta.data();
  require(begin < bytes && header.payload_bytes == std::min(stride, bytes - begin),
          [&] { return who() + "a fragment that its form does not have"; });
  require(std::memcmp(packet.payload, from + begin, header.payload_bytes) == 0, [&] {
    return who() + "the payload differs from the current " + (is_full ? "weights" : "delta");
  });
}

// Checks the state that the box holds beside the weights.
void SyncReplay::check_delta(const Chunk& chunk) const {
  const pipeline::Chunk& held = *chunk.held;
  if (chunk.clock == 0) return;
  require(std::equal(chunk.master.begin(), chunk.master.end(), held.deltas.master),
          [&] { return place(chunk) + ": the optimizer's weights differ from the replay's"; });
  const bool is_same_delta =
      chunk.delta.empty()
          ? held.deltas.is_result_full
          : std::memcmp(chunk.delta.data(), held.result[(held.rounds_made() - 1) & 1],
                        chunk.delta.size()) == 0;
  require(is_same_delta,
          [&] { return place(chunk) + ": the last delta differs from the replay's"; });
}

}  // namespace pbox::sim
