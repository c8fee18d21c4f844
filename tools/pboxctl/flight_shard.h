// A job's shard as a flight recorder holds it, and as a replay rebuilds it.
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

// A kShard record together with the name and session records that follow it.
struct ShardState {
  pbox::pipeline::ShardRecord facts;
  std::string name;
  std::vector<pbox::pipeline::SessionRecord::Rank> ranks;
};
// Returns nothing if the records that follow are cut off or impossible.
std::optional<ShardState> read_shard(Records records);

// A kChunk record with the claims that follow it.
struct ChunkState {
  pbox::pipeline::ChunkRecord facts;
  std::vector<uint64_t> claims;  // by rank; empty if no rank has claimed a fragment
};
std::optional<ChunkState> read_chunk(Records records, uint32_t worker_count);

class ReplayedShard {
 public:
  // Creates a shard with the chunks that `records` name; the recorder does not hold others. Returns
  // null if the facts are impossible, or if the shard needs more memory than `bytes_max`. Subtracts
  // the memory that it takes from `bytes_max`.
  static std::unique_ptr<ReplayedShard> create(const ShardState& state, uint32_t number,
                                               Records records, uint64_t& bytes_max);

  pbox::pipeline::JobShard& shard() { return *shard_; }
  const pbox::pipeline::JobShard& shard() const { return *shard_; }
  bool is_known(const pbox::pipeline::Chunk& chunk) const {
    return known_[shard_->index_of(chunk)];
  }

  enum class Match { kSame, kRestored, kDifferent, kImpossible };
  // Sets the chunk's state to the recorded one. kRestored: the state was unknown before.
  Match take(const ChunkState& state, uint64_t at_ns);
  // Returns whether the generation, the members and their sessions equal the recorded ones.
  bool has_same_members(const ShardState& state) const;

 private:
  bool is_possible(const ChunkState& state, const pbox::pipeline::Chunk& chunk) const;
  bool is_same(const ChunkState& state, const pbox::pipeline::Chunk& chunk) const;

  std::unique_ptr<pbox::pipeline::JobShard> shard_;
  std::vector<bool> known_;  // whether a chunk's state is known, by the chunk's index
};

}  // namespace pboxctl
