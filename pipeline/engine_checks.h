// Checks that the files of Engine share. They are on the data path and inlined.
#pragma once

#include "nic/wire/chunk_layout.h"
#include "pipeline/engine.h"
#include "pipeline/push_weights.h"

namespace pbox::pipeline {

inline void count_duplicate(EngineContext& context, Session& session) {
  context.counters.add(Counter::kDuplicate);
  session.duplicates.add(1);
}

// Returns the chunk that a packet is for. Returns nullptr, and counts the packet, if its epoch or
// generation is not the shard's or this pipeline owns no such chunk.
[[gnu::always_inline]] inline Chunk* Engine::find_chunk(JobShard& shard,
                                                        const wire::Header& header) {
  if (header.epoch != shard.epoch) {
    context_.counters.add(Counter::kRejectEpoch);
    return nullptr;
  }
  if (header.generation != shard.accepted_generation) {
    context_.counters.add(Counter::kRejectGeneration);
    return nullptr;
  }
  Chunk* chunk = shard.find(header.chunk);
  if (chunk == nullptr) context_.counters.add(Counter::kRejectChunk);
  PBOX_DCHECK(chunk == nullptr || chunk->id == header.chunk);
  return chunk;
}

// Returns the chunk if the packet's round is its open or its last finished one. A PULL may name any
// older round too.
[[gnu::always_inline]] inline Chunk* Engine::check_round(JobShard& shard,
                                                         const wire::Header& header) {
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return nullptr;
  PBOX_DCHECK(chunk->rounds_finished >= chunk->first_round);
  const int32_t ahead = wire::round_distance(header.round, chunk->open_round());
  if (ahead == 0) [[likely]]
    return chunk;
  // The first round is open, so there is no result yet that a rank could ask for.
  if (ahead > 0 || (ahead == -1 && chunk->rounds_finished == chunk->first_round)) {
    context_.counters.add(Counter::kRejectRound);
    return nullptr;
  }
  // A PULL for an old round is answered, not dropped: a process that replaces a lost rank may be
  // behind the pushes of its predecessor, and must learn where the chunk is.
  if (ahead < -1 && header.type() != wire::PacketType::kPull) {
    context_.counters.add(Counter::kStale);
    return nullptr;
  }
  return chunk;
}

// Returns true if the packet's fragment index, type and length are valid for the chunk. Otherwise
// counts the packet and returns false.
[[gnu::always_inline]] inline bool Engine::check_fragment(const Chunk& chunk,
                                                          const wire::Header& header) {
  PBOX_DCHECK(chunk.fragment_count > 0 && chunk.fragment_count <= limits::kFragmentCountMax);
  if (header.fragment >= chunk.fragment_count) {
    context_.counters.add(Counter::kRejectFragment);
    return false;
  }
  const auto dtype = static_cast<uint32_t>(chunk.dtype);
  if (header.dtype_scale != dtype) [[unlikely]] {
    uint32_t beside = 0;
    if (header.type() == wire::PacketType::kState) beside = header.contributors();
    if (header.type() == wire::PacketType::kPush) beside = weight_code_of(chunk, header);
    if (header.dtype_scale != (dtype | beside << 4)) {
      context_.counters.add(Counter::kRejectDtype);
      return false;
    }
  }
  if (header.payload_bytes !=
      wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, header.fragment)) {
    context_.counters.add(Counter::kRejectLength);
    return false;
  }
  return true;
}

}  // namespace pbox::pipeline
