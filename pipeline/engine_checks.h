// What every packet of a chunk is checked for, in whatever consistency model: shared by the files
// of Engine that receive. On the data path; inlined into it.
#pragma once

#include "nic/wire/chunk_layout.h"
#include "pipeline/engine.h"

namespace pbox::pipeline {

// The chunk that the packet is for; nullptr, and counted: it is of another epoch or generation, or
// of no chunk of this pipeline.
[[gnu::always_inline]] inline Chunk* Engine::find_chunk(JobShard& shard,
                                                        const wire::Header& header) {
  if (header.epoch != shard.epoch) {
    counters_.add(Counter::kRejectEpoch);
    return nullptr;
  }
  if (header.generation != shard.generation) {
    counters_.add(Counter::kRejectGeneration);
    return nullptr;
  }
  Chunk* chunk = shard.find(header.chunk);
  if (chunk == nullptr) counters_.add(Counter::kRejectChunk);
  return chunk;
}

// False, and counted, unless the packet carries a fragment as its chunk's description says.
[[gnu::always_inline]] inline bool Engine::check_fragment(const JobShard& shard, const Chunk& chunk,
                                                          const wire::Header& header) {
  if (header.fragment >= chunk.fragment_count) {
    counters_.add(Counter::kRejectFragment);
    return false;
  }
  const bool may_count = header.type() == wire::PacketType::kState;
  const uint32_t scale = may_count ? uint32_t{header.contributors()} << 4 : 0;
  if (header.dtype_scale != (static_cast<uint32_t>(chunk.dtype) | scale)) {
    counters_.add(Counter::kRejectDtype);
    return false;
  }
  if (header.payload_bytes !=
      wire::fragment_length(chunk.wire_bytes, shard.fragment_bytes, header.fragment)) {
    counters_.add(Counter::kRejectLength);
    return false;
  }
  return true;
}

}  // namespace pbox::pipeline
