// The form in which a finished round's result leaves. Where results are deltas, a rank that lacks
// the weights that a delta changes is sent the new weights in full (f32). On the data path.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "nic/wire/chunk_layout.h"
#include "nic/wire/header.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

struct ResultForm {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;           // payload bytes of all fragments
  uint32_t fragment_bytes = 0;  // payload bytes of all fragments but the last
  uint32_t fragment_count = 0;
  wire::Dtype dtype = wire::Dtype::kF32;
};

// For a packet of a chunk whose results are deltas: returns whether it pushes weights in full, asks
// for them (PULL), or carries them (RESULT).
inline bool asks_in_full(const wire::Header& header) {
  constexpr uint16_t kDtypeMask = 15;
  return (header.dtype_scale & kDtypeMask) == static_cast<uint16_t>(wire::Dtype::kF32);
}

// Returns whether the last result leaves in full for a rank that has sent this packet.
inline bool leaves_in_full(const Chunk& chunk, const wire::Header& header) {
  return gives_deltas(chunk) && (chunk.deltas.is_result_full || asks_in_full(header));
}

// Relaxed shards: returns whether the chunk's last result leaves in full for the rank. Only a rank
// that has the weights of the round before can use a delta. It has them if it pushed a part of the
// round in time. A push that came too late does not show which weights its rank has.
inline bool replies_in_full(const Chunk& chunk, uint32_t rank) {
  if (!gives_deltas(chunk)) [[likely]]
    return false;
  PBOX_DCHECK(chunk.sync != nullptr && chunk.sync->pushed != nullptr && chunk.rounds_finished > 0);
  const sync::Pushed& pushed = chunk.sync->pushed[rank];
  const bool was_in_time = pushed.round + 1 == chunk.open_round() && pushed.counted != 0;
  return chunk.deltas.is_result_full || !was_in_time || pushed.lacks_weights;
}

// Returns all fragments of a delta.
inline uint64_t delta_mask(const JobShard& shard, const Chunk& chunk) {
  const wire::Dtype dtype = chunk.deltas.dtype;
  return wire::full_mask(
      wire::fragment_count(wire::payload_bytes(dtype, chunk.elements),
                           wire::fragment_bytes_of(dtype, shard.fragment_bytes)));
}

inline ResultForm full_form(const Chunk& chunk, uint32_t fragment_bytes) {
  PBOX_DCHECK(gives_deltas(chunk) && chunk.weights != nullptr);
  const uint32_t bytes = wire::payload_bytes(wire::Dtype::kF32, chunk.elements);
  const float* const kept = chunk.published[(chunk.open_round() - 1) & 1];
  return {.data = reinterpret_cast<const std::byte*>(kept != nullptr ? kept : chunk.weights),
          .bytes = bytes,
          .fragment_bytes = fragment_bytes,
          .fragment_count = wire::fragment_count(bytes, fragment_bytes)};
}

// Returns the form of a round's result. `round`: the last finished round if the result leaves in
// full, otherwise any round whose result is kept. `in_full`: leaves_in_full() of the packet that
// asks for the result, or ChunkDeltas::is_result_full if no packet has asked.
inline ResultForm result_form(const JobShard& shard, const Chunk& chunk, uint32_t round,
                              bool in_full) {
  if (in_full) [[unlikely]]
    return full_form(chunk, shard.fragment_bytes);
  ResultForm form{.data = chunk.result[round & 1],
                  .bytes = chunk.wire_bytes,
                  .fragment_bytes = chunk.fragment_bytes,
                  .fragment_count = chunk.fragment_count,
                  .dtype = chunk.dtype};
  if (shard.is_collective) [[unlikely]] {
    PBOX_DCHECK(round + 1 == chunk.open_round());
    const ShapedRound& finished = finished_shape(chunk);
    form.bytes = finished.result_bytes;
    form.fragment_count = finished.shape.fragment_count;
    form.dtype = finished.shape.dtype;
  }
  return form;
}

// Returns the fragments that a complete push of the last finished round has.
inline uint64_t finished_push_mask(const JobShard& shard, const Chunk& chunk) {
  if (!chunk.deltas.is_result_full) [[likely]]
    return chunk.full_mask;
  return wire::full_mask(full_form(chunk, shard.fragment_bytes).fragment_count);
}

// Returns the fragments of the last result that the rank may ask for.
inline uint64_t result_mask(const JobShard& shard, const Chunk& chunk, uint32_t rank,
                            bool in_full) {
  if (in_full) [[unlikely]]
    return wire::full_mask(full_form(chunk, shard.fragment_bytes).fragment_count);
  if (chunk.shaped == nullptr) [[likely]]
    return chunk.full_mask;
  const ShapedRound& finished = finished_shape(chunk);
  return finished.shape.is_sent_to(rank) ? finished.mask() : 0;
}

// Returns the fragments of the last result that the sender of this PULL wants. Fragments that the
// rank holds are left out if they have the form of the answer.
inline AskedResult asked_by(const JobShard& shard, const Session& session, const Chunk& chunk,
                            const wire::Header& header, uint64_t held_mask) {
  PBOX_DCHECK(header.round + 1 == chunk.open_round());
  AskedResult asked;
  asked.in_full = leaves_in_full(chunk, header);
  asked.mask = result_mask(shard, chunk, session.rank, asked.in_full);
  const bool is_same_form = !asked.in_full || asks_in_full(header);
  if (is_same_form) asked.mask &= ~held_mask;
  return asked;
}

// Relaxed shards: returns the fragments of the last result that answer a PULL for any finished
// round. Fragments that the rank holds are left out if they are of the last result and in the form
// of the answer. A rank that asks for weights in full gets no delta before its next push.
inline AskedResult asked_of_reply(const JobShard& shard, Chunk& chunk, uint32_t rank,
                                  const wire::Header& header, uint64_t held_mask) {
  PBOX_DCHECK(chunk.sync != nullptr && !chunk.applies_on_arrival() && rank < shard.worker_count());
  PBOX_DCHECK(wire::round_distance(header.round, chunk.open_round()) < 0);
  const bool asks = gives_deltas(chunk) && asks_in_full(header);
  if (asks) chunk.sync->pushed[rank].lacks_weights = true;
  AskedResult asked;
  asked.in_full = replies_in_full(chunk, rank);
  asked.mask = result_mask(shard, chunk, rank, asked.in_full);
  const bool is_same_form = !gives_deltas(chunk) || asked.in_full == asks;
  if (is_same_form && header.round + 1 == chunk.open_round()) asked.mask &= ~held_mask;
  return asked;
}

// For a chunk whose results are deltas: returns the fragments of the last result that a repeated
// push of the last finished round asks for. If the push has the form of the result, it asks for the
// fragment of its own number. Otherwise it asks for none, and its worker will send a PULL.
inline uint64_t asked_by_push(const JobShard& shard, const Chunk& chunk,
                              const wire::Header& header) {
  PBOX_DCHECK(gives_deltas(chunk) && header.round != chunk.open_round());
  const bool is_known = header.type() != wire::PacketType::kZeros &&
                        header.fragment < limits::kFragmentCountMax &&
                        asks_in_full(header) == chunk.deltas.is_result_full;
  const uint64_t fragment = is_known ? uint64_t{1} << header.fragment : 0;
  return fragment & finished_push_mask(shard, chunk);
}

}  // namespace pbox::pipeline
