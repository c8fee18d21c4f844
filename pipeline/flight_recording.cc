#include "pipeline/flight_recording.h"

#include <algorithm>
#include <cstring>

#include "nic/wire/crc32c.h"

namespace pbox::pipeline {
namespace {

struct VerdictRow {
  Verdict verdict;
  Counter counter;
};

// If a packet raises two counters, the first row wins.
constexpr VerdictRow kVerdicts[] = {
    {Verdict::kTooShort, Counter::kRejectShort}, {Verdict::kVersion, Counter::kRejectVersion},
    {Verdict::kType, Counter::kRejectType},      {Verdict::kReserved, Counter::kRejectReserved},
    {Verdict::kLength, Counter::kRejectLength},  {Verdict::kTag, Counter::kRejectTag},
    {Verdict::kQueue, Counter::kRejectQueue},    {Verdict::kSession, Counter::kRejectSession},
    {Verdict::kEpoch, Counter::kRejectEpoch},    {Verdict::kGeneration, Counter::kRejectGeneration},
    {Verdict::kChunk, Counter::kRejectChunk},    {Verdict::kFragment, Counter::kRejectFragment},
    {Verdict::kDtype, Counter::kRejectDtype},    {Verdict::kRound, Counter::kRejectRound},
    {Verdict::kShape, Counter::kRejectShape},    {Verdict::kDuplicate, Counter::kDuplicate},
    {Verdict::kStale, Counter::kStale},          {Verdict::kDropped, Counter::kDropped},
    {Verdict::kPull, Counter::kPullsReceived},
};
static_assert(std::size(kVerdicts) == FlightRecording::kCountedVerdicts);

// Chunks examined in one turn of record_state().
constexpr size_t kChunksPerTurn = 64;

// Returns whether a packet was refused before its session and its tag were known to be right.
bool is_junk(Verdict verdict) {
  switch (verdict) {
    case Verdict::kTooShort:
    case Verdict::kVersion:
    case Verdict::kType:
    case Verdict::kReserved:
    case Verdict::kLength:
    case Verdict::kTag:
    case Verdict::kQueue:
    case Verdict::kSession: return true;
    default: return false;
  }
}

size_t turns_of(const JobShard& shard) {
  return shard.chunk_count() / kChunksPerTurn + 1;
}

}  // namespace

FlightRecording::FlightRecording(std::span<std::byte> memory, const EngineContext& context)
    : context_(context),
      ring_(memory),
      junk_allowed_(ring_.capacity() / kJunkShare),
      next_state_(memory.empty() ? UINT64_MAX : 0) {}

void FlightRecording::limit_junk() {
  PBOX_DCHECK(junk_counted_ <= ring_.written());
  const uint64_t earned = (ring_.written() - junk_counted_) / kJunkShare;
  junk_counted_ += earned * kJunkShare;
  junk_allowed_ = std::min(junk_allowed_ + earned, ring_.capacity() / kJunkShare);
  if (junk_allowed_ == 0) return ring_.replace_newest();
  --junk_allowed_;
}

void FlightRecording::note_verdict(FlightRecord& record) {
  for (size_t index = 0; index < kCountedVerdicts; ++index) {
    const uint64_t count = context_.counters.get(kVerdicts[index].counter);
    const bool has_moved = count != verdict_counts_[index];
    PBOX_DCHECK(count >= verdict_counts_[index]);
    verdict_counts_[index] = count;
    if (has_moved && record.verdict == Verdict::kPending) record.verdict = kVerdicts[index].verdict;
  }
  if (is_junk(record.verdict)) limit_junk();
}

void FlightRecording::note_mask(uint64_t mask) {
  FlightRecord& record = ring_.newest();
  PBOX_DCHECK(record.kind == FlightKind::kPacket);
  std::memcpy(record.body + offsetof(PacketRecord, held_mask), &mask, sizeof(mask));
}

void FlightRecording::record_command(const Command& command) {
  const bool changes_nothing =
      command.kind == CommandKind::kTrace || command.kind == CommandKind::kCut ||
      command.kind == CommandKind::kReportRounds || command.kind == CommandKind::kGiveVerdict;
  if (changes_nothing) return;
  CommandRecord record;
  record.command = static_cast<uint32_t>(command.kind);
  record.rank = command.rank;
  record.spi = command.spi;
  record.credit_bytes = command.credit_bytes;
  record.generation = command.generation;
  record.learning_rate = command.learning_rate;
  ring_.add(FlightKind::kCommand, command.shard->flight_number, context_.now_ns, record);
  if (command.kind != CommandKind::kRemove) record_shard(*command.shard);
}

void FlightRecording::record_shard(const JobShard& shard) {
  PBOX_DCHECK(shard.flight_number > 0 && shard.flight_number <= shard_numbers_);
  ShardRecord record;
  record.epoch = shard.epoch;
  record.fragment_bytes = shard.fragment_bytes;
  record.job_chunk_count = shard.job_chunk_count();
  record.chunk_count = static_cast<uint32_t>(shard.chunk_count());
  record.worker_count = shard.worker_count();
  record.generation = shard.generation;
  record.mode = static_cast<uint8_t>(shard.mode);
  record.reduction = static_cast<uint8_t>(shard.reduction);
  record.partial = shard.partial ? 1 : 0;
  record.is_collective = shard.is_collective ? 1 : 0;
  record.weighted = shard.weighted ? 1 : 0;
  record.delivery = static_cast<uint8_t>(shard.delivery);
  record.sync_model = static_cast<uint8_t>(shard.relaxed_model);
  const size_t name_bytes = std::min<size_t>(shard.name.size(), limits::kJobNameBytesMax);
  record.name_bytes = static_cast<uint8_t>(name_bytes);
  record.part = shard.part;
  ring_.add(FlightKind::kShard, shard.flight_number, context_.now_ns, record);
  for (size_t at = 0; at < name_bytes; at += kFlightBodyBytes) {
    std::array<char, kFlightBodyBytes> part{};
    std::copy_n(shard.name.data() + at, std::min(kFlightBodyBytes, name_bytes - at), part.data());
    ring_.add(FlightKind::kName, shard.flight_number, context_.now_ns, part);
  }
  record_sessions(shard);
}

void FlightRecording::record_sessions(const JobShard& shard) {
  const std::vector<Session>& sessions = shard.sessions();
  for (size_t rank = 0; rank < sessions.size(); rank += 2) {
    SessionRecord pair;
    for (size_t index = 0; index < 2 && rank + index < sessions.size(); ++index) {
      const Session& session = sessions[rank + index];
      pair.ranks[index] = {session.newest_packet_number, session.rank, session.spi,
                           session.credit_bytes, session.present ? 1u : 0u};
      PBOX_DCHECK(session.rank == rank + index);
    }
    ring_.add(FlightKind::kSession, shard.flight_number, context_.now_ns, pair);
  }
}

void FlightRecording::record_chunk(const JobShard& shard, const Chunk& chunk, bool opens) {
  PBOX_DCHECK(shard.index_of(chunk) < shard.chunk_count());
  PBOX_DCHECK((chunk.claimed_any & ~chunk.full_mask) == 0);
  ChunkRecord record;
  record.rounds_finished = chunk.rounds_finished;
  record.first_round = chunk.first_round;
  record.claimed_any = chunk.claimed_any;
  record.chunk = chunk.id;
  record.elements = chunk.elements;
  record.fanned_out_rounds = chunk.fanned_out_rounds;
  record.copy_rank = chunk.copy_rank;
  record.dtype = static_cast<uint8_t>(chunk.dtype);
  record.is_left_out = chunk.table != nullptr || gives_deltas(chunk) ? 1 : 0;
  record.opens = opens ? 1 : 0;
  const bool has_claims = chunk.claimed_any != 0 || chunk.copy_rank != kNoRank;
  const uint32_t workers = shard.worker_count();
  const uint32_t claims = (workers + ClaimsRecord::kRanks - 1) / ClaimsRecord::kRanks;
  record.claims = static_cast<uint16_t>(has_claims ? claims : 0);
  ring_.add(FlightKind::kChunk, shard.flight_number, context_.now_ns, record);
  for (uint32_t index = 0; index < record.claims; ++index) {
    ClaimsRecord part;
    part.chunk = chunk.id;
    part.first_rank = index * ClaimsRecord::kRanks;
    PBOX_DCHECK(part.first_rank < workers);
    const uint32_t ranks = std::min(ClaimsRecord::kRanks, workers - part.first_rank);
    std::copy_n(chunk.claimed + part.first_rank, ranks, part.masks);
    ring_.add(FlightKind::kClaims, shard.flight_number, context_.now_ns, part);
  }
}

void FlightRecording::record_left(const JobShard& shard, const FanOut& at) {
  PBOX_DCHECK(shard.flight_number > 0);
  LeftRecord record;
  record.chunk = at.chunk->id;
  record.round = at.round;
  PBOX_DCHECK(at.round + 1 == at.chunk->open_round());
  if (ring_.is_enabled() && !gives_deltas(*at.chunk)) {
    const Chunk& chunk = *at.chunk;
    const uint32_t piece = at.round % ((chunk.wire_bytes - 1) / kDigestedBytes + 1);
    PBOX_DCHECK(piece * kDigestedBytes < chunk.wire_bytes);
    const uint32_t bytes = std::min(kDigestedBytes, chunk.wire_bytes - piece * kDigestedBytes);
    record.piece = static_cast<uint16_t>(piece);
    record.digested_bytes = static_cast<uint16_t>(bytes);
    record.digest =
        wire::crc32c(0, chunk.result[at.round & 1] + size_t{piece} * kDigestedBytes, bytes);
  }
  ring_.add(FlightKind::kLeft, shard.flight_number, context_.now_ns, record);
}

// The record that is written when a round opens is by itself a known state of its chunk. This
// function is needed for rounds that stay open while the whole ring is overwritten. It records a
// few chunks at a time. All chunks of all jobs have had their turn before half of the ring is
// overwritten, so a full ring always holds the whole state.
void FlightRecording::record_state() {
  size_t turns = 0;
  for (const JobShard* shard : context_.shards) turns += turns_of(*shard);
  const uint64_t half = ring_.capacity() / 2;
  next_state_ = ring_.written() + (turns == 0 ? half : std::max<uint64_t>(1, half / turns));
  if (turns == 0) return;
  if (state_shard_ >= context_.shards.size()) state_shard_ = state_chunk_ = 0;
  JobShard& shard = *context_.shards[state_shard_];
  PBOX_DCHECK(state_chunk_ <= shard.chunk_count());
  if (state_chunk_ == 0) record_shard(shard);
  const size_t end = std::min(state_chunk_ + kChunksPerTurn, shard.chunk_count());
  for (; state_chunk_ < end; ++state_chunk_) {
    const Chunk& chunk = shard.chunks()[state_chunk_];
    if (chunk.claimed_any != 0) record_chunk(shard, chunk, false);
  }
  if (state_chunk_ < shard.chunk_count()) return;
  ++state_shard_;
  state_chunk_ = 0;
}

}  // namespace pbox::pipeline
