#include "pipeline/shaped_pushes.h"

#include <cfloat>
#include <cstring>

#include "nic/wire/collective.h"
#include "pipeline/engine_checks.h"
#include "pipeline/value_guard.h"

namespace pbox::pipeline {

uint64_t ShapedPushes::asked_mask(const Chunk& chunk, const wire::Header& header) {
  PBOX_DCHECK(chunk.shaped != nullptr);
  if (wire::is_empty_push(header)) return chunk.full_mask;
  return header.fragment < chunk.fragment_count ? uint64_t{1} << header.fragment : 0;
}

bool ShapedPushes::take(JobShard& shard, Session& session, Chunk& chunk,
                        const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  PBOX_DCHECK(chunk.shaped != nullptr && header.round == chunk.open_round());
  // As in Engine::claim(): only copy_rank sends STATE, and it sends nothing else.
  if ((header.type() == wire::PacketType::kState) != (chunk.copy_rank == session.rank)) {
    context_.counters.add(Counter::kRejectType);
    return false;
  }
  // A packet that does not count must not determine the round's shape.
  ShapedRound& open = chunk.shaped[chunk.open_round() & 1];
  PBOX_DCHECK(open.is_shaped || chunk.claimed_any == 0);
  wire::RoundShape shape;
  if (!read_shape(shard, chunk, header, shape)) return false;
  const ShapedRound candidate{.shape = shape, .is_shaped = true, .first_rank = session.rank};
  if (open.is_shaped && !(open.shape == shape)) [[unlikely]] {
    context_.counters.add(Counter::kRejectShape);
    shard.reject_shape({.chunk = chunk.id,
                        .round = chunk.open_round(),
                        .first_rank = open.first_rank,
                        .other_rank = session.rank});
    return false;
  }
  if (!check_fragment(shard, chunk, header, open.is_shaped ? open : candidate)) return false;
  if (!claim(shard, session, chunk, header, wire::full_mask(shape.fragment_count))) {
    return false;
  }
  if (!open.is_shaped) open = candidate;
  if (!wire::is_empty_push(header)) {
    if (header.fragment + 1 == open.shape.fragment_count) open.last_bytes = header.payload_bytes;
    combine(shard, session, chunk, parsed);
  }
  session.fragments_received.add(1);
  session.bytes_received.add(header.payload_bytes);
  return true;
}

// Reads the round's shape from a push. Returns false, and counts the packet, if it is invalid.
bool ShapedPushes::read_shape(const JobShard& shard, const Chunk& chunk, const wire::Header& header,
                              wire::RoundShape& shape) {
  PBOX_DCHECK(shard.is_collective);
  if (!wire::read_shape(header, shape) || shape.owner >= shard.worker_count()) {
    context_.counters.add(Counter::kRejectDtype);
    return false;
  }
  if (shape.fragment_count <= chunk.fragment_count) return true;
  context_.counters.add(Counter::kRejectFragment);
  return false;
}

// Returns false, and counts the packet, unless its index and payload length fit the round.
bool ShapedPushes::check_fragment(const JobShard& shard, const Chunk& chunk,
                                  const wire::Header& header, const ShapedRound& round) {
  PBOX_DCHECK(round.is_shaped && round.shape.fragment_count <= chunk.fragment_count);
  if (header.fragment >= round.shape.fragment_count) {
    context_.counters.add(Counter::kRejectFragment);
    return false;
  }
  const bool is_last = header.fragment + 1 == round.shape.fragment_count;
  const uint32_t bytes = header.payload_bytes;
  if (wire::is_empty_push(header)) {
    if (bytes == 0 && is_last) return true;
  } else {
    const uint32_t end = (header.fragment * shard.fragment_bytes + bytes) * round.widening();
    const bool fits =
        bytes > 0 && end <= chunk.elements && bytes % wire::dtype_bytes(round.shape.dtype) == 0;
    const bool is_first_last = is_last && round.last_bytes == 0;
    const uint32_t expected = is_last ? round.last_bytes : shard.fragment_bytes;
    if (fits && (bytes == expected || (is_first_last && bytes <= shard.fragment_bytes))) {
      return true;
    }
  }
  context_.counters.add(Counter::kRejectLength);
  return false;
}

// Like Engine::claim(), without the check of STATE. `mask`: the round's fragments. A push without
// data claims all of them. Each push also claims the chunk's fragments that the round lacks.
bool ShapedPushes::claim(const JobShard& shard, Session& session, Chunk& chunk,
                         const wire::Header& header, uint64_t mask) {
  const uint64_t unused = chunk.full_mask & ~mask;
  const uint64_t claims = wire::is_empty_push(header) ? mask : uint64_t{1} << header.fragment;
  uint64_t& claimed = chunk.claimed[session.rank];
  PBOX_DCHECK((claims & ~mask) == 0 && (claimed & ~chunk.full_mask) == 0);
  if ((claimed & claims) != 0) {
    count_duplicate(context_, session);
    return false;
  }
  const uint64_t all = claimed | claims | unused;
  if (all == chunk.full_mask && chunk.complete_workers + 1u == shard.present_count() &&
      chunk.fanned_out_rounds != chunk.open_round()) {
    context_.counters.add(Counter::kRejectRound);
    return false;
  }
  if (claimed == 0 && chunk.complete_workers == 0) [[unlikely]]
    flight_.record_chunk(shard, chunk, true);
  claimed = all;
  return true;
}

// Stores or combines the payload of a fragment that was claimed just now.
void ShapedPushes::combine(JobShard& shard, Session& session, Chunk& chunk,
                           const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const ShapedRound& round = chunk.shaped[chunk.open_round() & 1];
  const uint64_t bit = uint64_t{1} << header.fragment;
  const auto type = static_cast<size_t>(round.shape.dtype);
  const size_t elements = header.payload_bytes / wire::dtype_bytes(round.shape.dtype);
  std::byte* const slot = reinterpret_cast<std::byte*>(chunk.accumulator[chunk.open_round() & 1]);
  std::byte* const sum = slot + size_t{header.fragment} * shard.fragment_bytes * round.widening();
  PBOX_DCHECK(sum + header.payload_bytes * round.widening() <= slot + chunk.elements);
  const bool is_first = (chunk.claimed_any & bit) == 0;
  chunk.claimed_any |= bit;
  if (round.is_gradient() && chunk.copy_rank == kNoRank) {
    const auto kernel = gradient_kernel(kernels_, shard.guard, round.shape.dtype, is_first);
    if (!kernel(reinterpret_cast<float*>(sum), parsed.payload, elements, shard.value_limit)) {
      note_unsound(shard, session, chunk, chunk.open_round(), context_.now_ns);
    }
  } else if (round.widening() > 1 && is_first) {
    kernels_.store[type](reinterpret_cast<float*>(sum), parsed.payload, elements, FLT_MAX);
  } else if (is_first || round.shape.combine == wire::Combine::kCopy) {
    std::memcpy(sum, parsed.payload, header.payload_bytes);
  } else {
    const auto& row = round.shape.combine == wire::Combine::kMin   ? combiners_.min
                      : round.shape.combine == wire::Combine::kMax ? combiners_.max
                                                                   : combiners_.sum;
    PBOX_DCHECK(row[type] != nullptr);
    row[type](sum, parsed.payload, elements);
  }
}

}  // namespace pbox::pipeline
