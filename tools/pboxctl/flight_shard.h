// A job's part of a pipeline as a flight recorder knows it, and as a replay rebuilds it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipeline/engine.h"
#include "pipeline/observe/flight_record.h"

namespace pboxctl {

using Records = std::span<const pbox::pipeline::FlightRecord>;

template <typename Body>
Body body_of(const pbox::pipeline::FlightRecord& record) {
  Body body;
  std::memcpy(static_cast<void*>(&body), record.body, sizeof(body));
  return body;
}

// A kShard record with all that follows it.
struct ShardState {
  pbox::pipeline::ShardRecord facts;
  std::string name;
  std::vector<pbox::pipeline::SessionRecord::Rank> ranks;
};
// Nothing: what follows is cut off, or cannot be.
std::optional<ShardState> read_shard(Records records);

// A kChunk record with the claims that follow it.
struct ChunkState {
  pbox::pipeline::ChunkRecord facts;
  std::vector<uint64_t> claims;  // by rank; empty: none
};
std::optional<ChunkState> read_chunk(Records records, uint32_t worker_count);

class ReplayedShard {
 public:
  // Of the chunks that these records name: the others are not in the recorder. Nothing: facts that
  // cannot be, or more memory than `bytes_max`, of which what is taken is subtracted.
  static std::unique_ptr<ReplayedShard> create(const ShardState& state, uint32_t number,
                                               Records records, uint64_t& bytes_max);

  pbox::pipeline::JobShard& shard() { return *shard_; }
  const pbox::pipeline::JobShard& shard() const { return *shard_; }
  bool is_known(const pbox::pipeline::Chunk& chunk) const {
    return known_[shard_->index_of(chunk)];
  }

  enum class Match { kSame, kRestored, kDifferent, kImpossible };
  // Makes the chunk's state what was recorded. kRestored: it was not known before.
  Match take(const ChunkState& state, uint64_t at_ns);
  // The same as recorded: generation, and who takes part with which session.
  bool has_same_members(const ShardState& state) const;

 private:
  bool is_possible(const ChunkState& state, const pbox::pipeline::Chunk& chunk) const;
  bool is_same(const ChunkState& state, const pbox::pipeline::Chunk& chunk) const;

  std::unique_ptr<pbox::pipeline::JobShard> shard_;
  std::vector<bool> known_;  // by chunk's index
};

}  // namespace pboxctl
