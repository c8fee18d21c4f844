#include "pipeline/zero_pushes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "nic/wire/chunk_layout.h"
#include "pipeline/push_weights.h"

namespace pbox::pipeline {
namespace {

// Adds zeros to a sum. This changes elements that are -0 or a signalling NaN.
void add_zeros(const reduce::Kernels& kernels, float* sum, size_t elements) {
  PBOX_DCHECK(sum != nullptr && elements > 0);
  static constexpr std::array<float, 512> kZeros{};
  const auto add = kernels.add[static_cast<size_t>(wire::Dtype::kF32)];
  for (size_t at = 0; at < elements; at += kZeros.size()) {
    const size_t count = std::min(kZeros.size(), elements - at);
    static_cast<void>(
        add(sum + at, reinterpret_cast<const std::byte*>(kZeros.data()), count, FLT_MAX));
  }
}

}  // namespace

uint64_t ZeroPushes::read(const JobShard& shard, const Chunk& chunk,
                          const wire::Parsed& parsed) const {
  const wire::Header& header = parsed.header;
  PBOX_DCHECK(header.type() == wire::PacketType::kZeros);
  if (shard.is_relaxed() || shard.is_collective || chunk.table != nullptr) {
    context_.counters.add(Counter::kRejectType);
    return 0;
  }
  const uint32_t weight = weight_code_of(chunk, header);
  if (header.dtype_scale != (static_cast<uint32_t>(chunk.dtype) | weight << 4)) {
    context_.counters.add(Counter::kRejectDtype);
    return 0;
  }
  if (header.payload_bytes != sizeof(wire::ZerosPayload)) {
    context_.counters.add(Counter::kRejectLength);
    return 0;
  }
  const uint64_t named = wire::read_zeros(parsed, chunk.full_mask);
  if (named == 0) context_.counters.add(Counter::kRejectFragment);
  return named;
}

void ZeroPushes::add(JobShard& shard, Session& session, Chunk& chunk, uint64_t fragments) const {
  const uint32_t round = chunk.open_round();
  PBOX_DCHECK(fragments != 0 && (fragments & ~chunk.claimed[session.rank]) == 0);
  PBOX_DCHECK(chunk.copy_rank == kNoRank && !shard.is_relaxed());
  size_t elements = 0;
  for (uint64_t left = fragments; left != 0; left &= left - 1) {
    const auto fragment = static_cast<uint32_t>(std::countr_zero(left));
    add_fragment(shard, session, chunk, fragment);
    elements += shard.fragment_elements(chunk, fragment);
  }
  chunk.claimed_any |= fragments;
  chunk.zeros.named |= fragments;
  session.bytes_received.add(sizeof(wire::ZerosPayload));
  session.fragments_received.add(static_cast<uint64_t>(std::popcount(fragments)));
  context_.counters.add(Counter::kZeroFragments, static_cast<uint64_t>(std::popcount(fragments)));
  if (!GradientSquares::measures(round) || shard.receives_weights(chunk)) return;
  PBOX_DCHECK(elements <= chunk.elements);
  session.squares.add(round, 0, elements, shard.element_count);
}

void ZeroPushes::add_fragment(const JobShard& shard, const Session& session, Chunk& chunk,
                              uint32_t fragment) const {
  const size_t offset = shard.fragment_offset_elements(chunk, fragment);
  const size_t elements = shard.fragment_elements(chunk, fragment);
  PBOX_DCHECK(offset + elements <= chunk.elements);
  const uint64_t bit = uint64_t{1} << fragment;
  if (shard.receives_weights(chunk)) {  // as in Engine::accumulate()
    if (session.rank == 0 && !chunk.is_restored) {
      std::fill_n(chunk.weights + offset, elements, 0.0f);
    }
    return;
  }
  if (shard.keeps_pushes(chunk)) {
    const uint32_t bytes = wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, fragment);
    std::memset(shard.pushed(chunk, session.rank, fragment), 0, bytes);
    return;
  }
  PBOX_DCHECK(chunk.accumulator[chunk.open_round() & 1] != nullptr);
  float* const sum = chunk.accumulator[chunk.open_round() & 1] + offset;
  if ((chunk.claimed_any & bit) == 0) {
    std::fill_n(sum, elements, 0.0f);
  } else if ((chunk.zeros.named & bit) == 0) {
    add_zeros(kernels_, sum, elements);
  }
}

void note_zero_results(const JobShard& shard, Chunk& chunk) {
  const uint32_t slot = chunk.open_round() & 1;
  PBOX_DCHECK((chunk.zeros.named & ~chunk.full_mask) == 0);
  const uint64_t named = std::exchange(chunk.zeros.named, 0);
  chunk.zeros.results[slot] =
      named == 0 || shard.mode == Mode::kOptimize
          ? 0
          : wire::zero_fragments(chunk.result[slot], chunk.wire_bytes, chunk.fragment_bytes, named);
}

}  // namespace pbox::pipeline
