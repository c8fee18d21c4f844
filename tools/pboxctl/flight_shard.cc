#include "tools/pboxctl/flight_shard.h"

#include <algorithm>
#include <map>

#include "nic/wire/chunk_layout.h"

namespace pboxctl {
namespace {

using namespace pbox;
using namespace pbox::pipeline;

bool is_possible(const ShardRecord& facts) {
  return facts.fragment_bytes >= limits::kFragmentBytesMin &&
         facts.fragment_bytes <= limits::kFragmentBytesMax && facts.fragment_bytes % 4 == 0 &&
         facts.job_chunk_count <= limits::kChunksPerJobMax && facts.worker_count > 0 &&
         facts.worker_count <= limits::kWorkersPerJobMax && facts.mode <= 1 &&
         facts.reduction <= 1 && facts.partial <= 1 && facts.delivery <= 1 &&
         (facts.is_collective == 0 || (facts.mode == 0 && facts.partial == 0)) &&
         facts.is_collective <= 1 && facts.sync_model < wire::kSyncModelCount &&
         (facts.weighted == 0 || (facts.reduction == 1 && facts.is_collective == 0)) &&
         facts.weighted <= 1 && facts.name_bytes <= limits::kJobNameBytesMax;
}

bool is_possible(const ChunkRecord& facts, const ShardRecord& shard) {
  const auto dtype = static_cast<wire::Dtype>(facts.dtype);
  const bool is_in_blocks = wire::is_in_blocks(dtype) && shard.mode == 0 && !shard.is_collective;
  if (!is_in_blocks && facts.dtype >= wire::kCollectiveDtypeCount) return false;
  if (facts.chunk >= shard.job_chunk_count || facts.elements > limits::kChunkBytesMax) return false;
  const uint64_t bytes = wire::payload_bytes(dtype, facts.elements);
  return bytes > 0 && bytes <= uint64_t{wire::fragment_bytes_of(dtype, shard.fragment_bytes)} *
                                   limits::kFragmentCountMax;
}

// Returns the record at `index` if it has that kind and belongs to the same part; else null.
const FlightRecord* following(Records records, size_t index, FlightKind kind) {
  if (index >= records.size() || records[index].kind != kind) return nullptr;
  return records[index].subject == records[0].subject ? &records[index] : nullptr;
}

std::vector<ChunkSpec> chunks_of(const ShardRecord& facts, uint32_t number, Records records) {
  std::map<uint32_t, ChunkSpec> chunks;
  for (const FlightRecord& record : records) {
    if (record.kind != FlightKind::kChunk || record.subject != number) continue;
    const auto chunk = body_of<ChunkRecord>(record);
    if (!is_possible(chunk, facts) || chunk.is_left_out != 0) continue;
    chunks.emplace(chunk.chunk, ChunkSpec{.chunk = chunk.chunk,
                                          .elements = chunk.elements,
                                          .dtype = static_cast<wire::Dtype>(chunk.dtype)});
  }
  std::vector<ChunkSpec> list;
  for (const auto& [id, chunk] : chunks) list.push_back(chunk);
  return list;
}

}  // namespace

std::optional<ShardState> read_shard(Records records) {
  ShardState state{.facts = body_of<ShardRecord>(records[0]), .name = {}, .ranks = {}};
  if (!is_possible(state.facts)) return std::nullopt;
  size_t next = 1;
  while (state.name.size() < state.facts.name_bytes) {
    const FlightRecord* part = following(records, next++, FlightKind::kName);
    if (part == nullptr) return std::nullopt;
    const size_t left = state.facts.name_bytes - state.name.size();
    state.name.append(reinterpret_cast<const char*>(part->body), std::min(left, kFlightBodyBytes));
  }
  while (state.ranks.size() < state.facts.worker_count) {
    const FlightRecord* pair = following(records, next++, FlightKind::kSession);
    if (pair == nullptr) return std::nullopt;
    const auto session = body_of<SessionRecord>(*pair);
    for (const auto& rank : session.ranks) {
      if (state.ranks.size() < state.facts.worker_count) state.ranks.push_back(rank);
    }
  }
  for (uint32_t rank = 0; rank < state.ranks.size(); ++rank) {
    if (state.ranks[rank].rank != rank || state.ranks[rank].present > 1) return std::nullopt;
  }
  return state;
}

std::optional<ChunkState> read_chunk(Records records, uint32_t worker_count) {
  ChunkState state{.facts = body_of<ChunkRecord>(records[0]), .claims = {}};
  if (state.facts.claims == 0) return state;
  for (size_t next = 1; state.claims.size() < worker_count; ++next) {
    const FlightRecord* record = following(records, next, FlightKind::kClaims);
    if (record == nullptr) return std::nullopt;
    const auto part = body_of<ClaimsRecord>(*record);
    const bool fits = part.chunk == state.facts.chunk && part.first_rank == state.claims.size();
    if (!fits) return std::nullopt;
    for (const uint64_t mask : part.masks) {
      if (state.claims.size() < worker_count) state.claims.push_back(mask);
    }
  }
  return state;
}

std::unique_ptr<ReplayedShard> ReplayedShard::create(const ShardState& state, uint32_t number,
                                                     Records records, uint64_t& bytes_max) {
  ShardSpec spec;
  spec.name = state.name;
  spec.part = state.facts.part;
  spec.epoch = state.facts.epoch;
  spec.generation = state.facts.generation;
  spec.fragment_bytes = state.facts.fragment_bytes;
  spec.mode = static_cast<Mode>(state.facts.mode);
  spec.reduction = static_cast<Reduction>(state.facts.reduction);
  spec.weighted = state.facts.weighted != 0;
  spec.partial = state.facts.partial != 0;
  spec.is_collective = state.facts.is_collective != 0;
  spec.delivery = static_cast<wire::Delivery>(state.facts.delivery);
  spec.job_chunk_count = state.facts.job_chunk_count;
  spec.chunks = chunks_of(state.facts, number, records);
  spec.hugepages = Hugepages::kNever;
  for (const auto& rank : state.ranks) {
    spec.sessions.push_back({rank.spi, rank.credit_bytes, rank.present != 0});
  }
  const uint64_t bytes = shard_footprint(spec);
  if (bytes > bytes_max) return nullptr;
  auto shard = JobShard::create(spec);
  if (!shard) return nullptr;
  bytes_max -= bytes;
  auto replayed = std::make_unique<ReplayedShard>();
  replayed->shard_ = std::move(*shard);
  replayed->known_.resize(spec.chunks.size());
  return replayed;
}

bool ReplayedShard::is_possible(const ChunkState& state, const Chunk& chunk) const {
  const ChunkRecord& facts = state.facts;
  if (facts.elements != chunk.elements || facts.dtype != static_cast<uint8_t>(chunk.dtype) ||
      facts.first_round > facts.rounds_finished || (facts.claimed_any & ~chunk.full_mask) != 0) {
    return false;
  }
  if (facts.copy_rank != kNoRank &&
      (facts.copy_rank >= shard_->worker_count() || !shard_->sessions()[facts.copy_rank].present)) {
    return false;
  }
  uint32_t complete = 0;
  for (uint32_t rank = 0; rank < state.claims.size(); ++rank) {
    if ((state.claims[rank] & ~chunk.full_mask) != 0) return false;
    const bool is_full = state.claims[rank] == chunk.full_mask;
    complete += is_full && shard_->sessions()[rank].present ? 1 : 0;
  }
  return complete < shard_->present_count() || shard_->present_count() == 0;
}

bool ReplayedShard::is_same(const ChunkState& state, const Chunk& chunk) const {
  const ChunkRecord& facts = state.facts;
  if (facts.rounds_finished != chunk.rounds_finished || facts.claimed_any != chunk.claimed_any ||
      facts.copy_rank != chunk.copy_rank) {
    return false;
  }
  for (uint32_t rank = 0; rank < shard_->worker_count(); ++rank) {
    if (chunk.claimed[rank] != (state.claims.empty() ? 0 : state.claims[rank])) return false;
  }
  return true;
}

ReplayedShard::Match ReplayedShard::take(const ChunkState& state, uint64_t at_ns) {
  Chunk* found = shard_->find(state.facts.chunk);
  if (found == nullptr || !is_possible(state, *found)) return Match::kImpossible;
  Chunk& chunk = *found;
  const uint32_t index = shard_->index_of(chunk);
  const bool was_known = known_[index];
  if (was_known && is_same(state, chunk)) return Match::kSame;
  known_[index] = true;
  chunk.rounds_finished = state.facts.rounds_finished;
  chunk.first_round = state.facts.first_round;
  chunk.fanned_out_rounds = state.facts.fanned_out_rounds;
  chunk.claimed_any = state.facts.claimed_any;
  // The recorder holds no weights of pushes. Any positive sum will do, because the values that it
  // divides are not recorded either.
  if (shard_->weighted) std::fill_n(chunk.weight_sums, chunk.fragment_count, 1);
  chunk.copy_rank = state.facts.copy_rank;
  chunk.complete_workers = 0;
  chunk.first_missing = 0;
  shard_->stragglers.ended(index);
  for (uint32_t rank = 0; rank < shard_->worker_count(); ++rank) {
    chunk.claimed[rank] = state.claims.empty() ? 0 : state.claims[rank];
    if (chunk.claimed[rank] != chunk.full_mask || !shard_->sessions()[rank].present) continue;
    ++chunk.complete_workers;
    if (chunk.copy_rank == kNoRank) shard_->stragglers.arrived(index, at_ns);
  }
  return was_known ? Match::kDifferent : Match::kRestored;
}

bool ReplayedShard::has_same_members(const ShardState& state) const {
  const auto& sessions = shard_->sessions();
  if (state.facts.generation != shard_->generation || state.ranks.size() != sessions.size()) {
    return false;
  }
  return std::equal(sessions.begin(), sessions.end(), state.ranks.begin(),
                    [](const Session& session, const SessionRecord::Rank& rank) {
                      if (session.present != (rank.present != 0)) return false;
                      return !session.present || session.spi == rank.spi;
                    });
}

}  // namespace pboxctl
