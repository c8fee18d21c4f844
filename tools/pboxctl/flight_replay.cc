#include "tools/pboxctl/flight_replay.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "tools/pboxctl/flight_shard.h"

namespace pboxctl {
namespace {

using namespace pbox;
using namespace pbox::pipeline;

constexpr uint64_t kReplayBytesMax = uint64_t{32} << 30;  // address space; little of it is used
// Capacity of the engine's own recorder, which exceeds the records that one packet causes.
constexpr uint64_t kScratchRecords = 1024;

// Replays one pipeline's records.
class PipelineReplayer {
 public:
  PipelineReplayer(const FlightImage& image, FlightReplay& replay)
      : image_(image),
        records_(image.records),
        replay_(replay),
        scratch_(flight_image_bytes(kScratchRecords) / sizeof(FlightRecord)),
        engine_({.pipeline_index = image.pipeline_index,
                 .tag = {},
                 .flight = make_scratch(image.pipeline_index, scratch_)}),
        packet_(limits::kUdpPayloadMax) {}

  void run();

 private:
  struct Part {
    std::string job;
    bool is_removed = false;
    bool replays = false;                  // true if rounds of the job's model can be replayed
    std::unique_ptr<ReplayedShard> shard;  // null if the part is not replayed
    std::map<uint32_t, uint32_t> rank_of;  // rank by spi
  };

  static std::span<std::byte> make_scratch(uint32_t pipeline, std::vector<FlightRecord>& scratch) {
    const auto bytes = std::as_writable_bytes(std::span(scratch));
    make_flight_head({.pipeline_index = pipeline, .capacity = kScratchRecords}, bytes.data());
    return bytes;
  }
  const FlightHead& scratch_head() const {
    return *reinterpret_cast<const FlightHead*>(scratch_.data());
  }
  // Returns the engine's verdict on the last packet. Records of what the packet has caused may
  // follow it.
  Verdict newest_verdict() const {
    uint64_t number = scratch_head().written.load(std::memory_order_relaxed);
    const FlightRecord* record = nullptr;
    do {
      PBOX_CHECK(number > 0);
      record = &scratch_[kFlightHeadBytes / sizeof(FlightRecord) + --number % kScratchRecords];
    } while (record->kind != FlightKind::kPacket);
    return record->verdict;
  }

  void take(size_t index);
  void take_packet(size_t index);
  void take_shard(size_t index);
  void take_chunk(size_t index);
  void take_command(size_t index);
  void take_left(size_t index);
  void note_result(const Part& part, const LeftRecord& left);
  void count_packet(const FlightRecord& record, const PacketRecord& packet);
  bool may_be_judged(const FlightRecord& record, const PacketRecord& packet);
  Verdict feed(const FlightRecord& record, const PacketRecord& packet);
  void install(uint32_t number, const ShardState& state);
  void remove(uint32_t number);
  bool may_connect(uint32_t spi, const Session* former) const;
  bool may_change(JobShard& shard, const CommandRecord& command) const;
  void note_ranks(uint32_t number, const ShardState& state);
  Part* part_of(uint32_t spi);
  Part* known_part(const FlightRecord& record);
  void differ(size_t index, const std::string& text);
  void report_part(const Part& part);

  const FlightImage& image_;
  Records records_;
  FlightReplay& replay_;
  PipelineReplay report_;
  std::vector<FlightRecord> scratch_;  // the flight recorder of `engine_`
  Engine engine_;
  std::vector<std::byte> packet_;
  uint64_t bytes_left_ = kReplayBytesMax;
  uint64_t now_ns_ = 0;  // never runs back, as the engine expects, whatever the records say
  uint32_t installed_ = 0;
  std::map<uint32_t, Part> parts_;       // by the part's number
  std::map<uint32_t, uint32_t> owners_;  // the part's number by spi
};

void PipelineReplayer::run() {
  report_.index = image_.pipeline_index;
  report_.first = image_.first;
  report_.records = records_.size();
  if (!records_.empty()) {
    // A command may be older than the loop's first turn.
    const uint64_t first_ns = std::max(records_.front().at_ns, image_.begun_ns);
    report_.begun_unix_ns = image_.begun_unix_ns + (first_ns - image_.begun_ns);
    report_.lasted_ns = std::max(records_.back().at_ns, first_ns) - first_ns;
  }
  for (size_t index = 0; index < records_.size(); ++index) take(index);
  for (const auto& [number, part] : parts_) report_part(part);
  replay_.pipelines.push_back(report_);
}

void PipelineReplayer::take(size_t index) {
  now_ns_ = std::max(now_ns_, records_[index].at_ns);
  switch (records_[index].kind) {
    case FlightKind::kPacket: take_packet(index); return;
    case FlightKind::kShard: take_shard(index); return;
    case FlightKind::kChunk:
      if (body_of<ChunkRecord>(records_[index]).opens == 0) take_chunk(index);
      return;  // otherwise it belongs to the packet before it, which has taken it
    case FlightKind::kCommand: take_command(index); return;
    case FlightKind::kLeft: take_left(index); return;
    case FlightKind::kName:
    case FlightKind::kSession:
    case FlightKind::kClaims: return;  // parts of the record before them
    default: ++report_.damaged;
  }
}

void PipelineReplayer::differ(size_t index, const std::string& text) {
  ++replay_.difference_count;
  if (replay_.differences.size() >= FlightReplay::kDifferencesShown) return;
  replay_.differences.push_back({report_.index, image_.first + index, text});
}

PipelineReplayer::Part* PipelineReplayer::part_of(uint32_t spi) {
  const auto owner = owners_.find(spi);
  return owner == owners_.end() ? nullptr : &parts_[owner->second];
}

PipelineReplayer::Part* PipelineReplayer::known_part(const FlightRecord& record) {
  const auto found = parts_.find(record.subject);
  const bool is_known = found != parts_.end() && found->second.shard != nullptr;
  return is_known && !found->second.is_removed ? &found->second : nullptr;
}

void PipelineReplayer::count_packet(const FlightRecord& record, const PacketRecord& packet) {
  ++report_.verdicts[static_cast<size_t>(record.verdict)];
  const Part* part = part_of(packet.header.spi);
  if (part == nullptr) return;
  const auto rank = part->rank_of.find(packet.header.spi);
  RankReplay& counts = replay_.jobs[part->job].ranks[rank->second];
  counts.last_packet_ns = std::max(counts.last_packet_ns, record.at_ns);
  switch (record.verdict) {
    case Verdict::kPending: return;
    case Verdict::kAggregated: ++counts.fragments; return;
    case Verdict::kDuplicate: ++counts.duplicates; return;
    case Verdict::kPull: ++counts.pulls; return;
    default: ++counts.refused;
  }
}

void PipelineReplayer::take_packet(size_t index) {
  const FlightRecord& record = records_[index];
  const auto packet = body_of<PacketRecord>(record);
  if (record.verdict >= Verdict::kCount || record.subject > packet_.size()) {
    ++report_.damaged;
    return;
  }
  count_packet(record, packet);
  if (record.verdict == Verdict::kPending && index + 1 == records_.size()) {
    report_.interrupted = "packet " + std::to_string(packet.header.packet_number) + " of spi " +
                          std::to_string(packet.header.spi) + ": chunk " +
                          std::to_string(packet.header.chunk) + ", round " +
                          std::to_string(packet.header.round) + ", fragment " +
                          std::to_string(packet.header.fragment);
  }
  // If the packet opens a round, the next record holds the chunk's state before the packet.
  if (index + 1 < records_.size() && records_[index + 1].kind == FlightKind::kChunk &&
      body_of<ChunkRecord>(records_[index + 1]).opens != 0) {
    take_chunk(index + 1);
  }
  const Part* part = part_of(packet.header.spi);
  if (part != nullptr && !part->replays) {
    ++report_.other_models;
    return;
  }
  if (!may_be_judged(record, packet)) {
    ++report_.too_early;
    return;
  }
  const Verdict verdict = feed(record, packet);
  if (record.verdict == Verdict::kPending) return;
  ++report_.judged;
  if (verdict == record.verdict) return;
  differ(index, "chunk " + std::to_string(packet.header.chunk) + ", round " +
                    std::to_string(packet.header.round) + ", fragment " +
                    std::to_string(packet.header.fragment) + ", spi " +
                    std::to_string(packet.header.spi) + ": recorded as " +
                    to_string(record.verdict) + ", replayed as " + to_string(verdict));
}

bool PipelineReplayer::may_be_judged(const FlightRecord& record, const PacketRecord& packet) {
  const wire::Header& header = packet.header;
  switch (record.verdict) {
    case Verdict::kTooShort:
    case Verdict::kVersion:
    case Verdict::kReserved:
    case Verdict::kQueue:
    case Verdict::kSession: return true;
    default: break;
  }
  Part* part = part_of(header.spi);
  if (part == nullptr || part->shard == nullptr || part->is_removed) return false;
  JobShard& shard = part->shard->shard();
  switch (record.verdict) {
    case Verdict::kTag:
    case Verdict::kEpoch:
    case Verdict::kGeneration:
    case Verdict::kChunk: return true;
    default: break;
  }
  Chunk* chunk = shard.find(header.chunk);
  return chunk != nullptr && part->shard->is_known(*chunk);
}

Verdict PipelineReplayer::feed(const FlightRecord& record, const PacketRecord& packet) {
  const uint32_t bytes = record.subject;
  wire::Header header = packet.header;
  header.flags &= static_cast<uint8_t>(~(wire::flag::kEncrypted | wire::flag::kKeyPhase));
  std::fill_n(packet_.begin(), bytes, std::byte{});
  std::memcpy(packet_.data(), &header, std::min<size_t>(bytes, sizeof(header)));
  const uint32_t payload = header.payload_bytes;
  if (bytes == limits::kPacketOverheadBytes + payload) {
    std::byte* at = packet_.data() + sizeof(header);
    if (payload == sizeof(packet.held_mask)) std::memcpy(at, &packet.held_mask, payload);
    wire::Tag tag = wire::make_tag({}, header, at);
    if (record.verdict == Verdict::kTag) tag[0] ^= std::byte{1};
    std::memcpy(at + payload, tag.data(), tag.size());
  }
  const nic::RxPacket received{packet_.data(), bytes, {}};
  engine_.on_burst({&received, 1}, now_ns_);
  return newest_verdict();
}

void PipelineReplayer::note_ranks(uint32_t number, const ShardState& state) {
  Part& part = parts_[number];
  for (const auto& [spi, rank] : part.rank_of) owners_.erase(spi);
  part.rank_of.clear();
  JobReplay& job = replay_.jobs[part.job];
  job.ranks.resize(std::max(job.ranks.size(), state.ranks.size()));
  for (const auto& rank : state.ranks) {
    job.ranks[rank.rank].present = rank.present != 0;
    if (rank.present == 0) continue;
    part.rank_of[rank.spi] = rank.rank;
    owners_[rank.spi] = number;
  }
}

// Returns whether the place of `spi` in the engine's session table is free. The place of `former`
// counts as free.
bool PipelineReplayer::may_connect(uint32_t spi, const Session* former) const {
  if (spi_pipeline(spi) != report_.index) return false;
  for (const auto& [number, part] : parts_) {
    if (part.shard == nullptr || part.is_removed) continue;
    for (const Session& session : std::as_const(*part.shard).shard().sessions()) {
      const bool is_same_place = wire::spi_index(session.spi) == wire::spi_index(spi);
      if (session.present && is_same_place && &session != former) return false;
    }
  }
  return true;
}

void PipelineReplayer::install(uint32_t number, const ShardState& state) {
  Part& part = parts_[number];
  std::set<uint32_t> places;
  bool is_possible = installed_ < limits::kShardsPerPipelineMax;
  for (const auto& rank : state.ranks) {
    if (rank.present == 0) continue;
    is_possible = is_possible && may_connect(rank.spi, nullptr) &&
                  places.insert(wire::spi_index(rank.spi)).second;
  }
  if (is_possible) part.shard = ReplayedShard::create(state, number, records_, bytes_left_);
  if (part.shard == nullptr) {
    ++report_.damaged;
    return;
  }
  ++installed_;
  engine_.execute({.kind = CommandKind::kInstall, .shard = &part.shard->shard()});
}

void PipelineReplayer::take_shard(size_t index) {
  const auto state = read_shard(records_.subspan(index));
  if (!state) {
    ++report_.damaged;
    return;
  }
  const uint32_t number = records_[index].subject;
  const auto found = parts_.find(number);
  if (found == parts_.end()) {
    Part& part = parts_[number];
    part.job = state->name;
    part.replays = static_cast<wire::SyncModel>(state->facts.sync_model) == wire::SyncModel::kBsp;
    replay_.jobs[part.job].model = wire::kSyncModelNames[state->facts.sync_model];
    if (part.replays) install(number, *state);
  } else if (found->second.job != state->name || found->second.is_removed) {
    ++report_.damaged;
    return;
  } else if (found->second.shard != nullptr && !found->second.shard->has_same_members(*state)) {
    differ(index, "job '" + state->name + "': the replay has other members, or another generation");
    return;
  }
  note_ranks(number, *state);
}

void PipelineReplayer::take_chunk(size_t index) {
  const FlightRecord& record = records_[index];
  Part* part = known_part(record);
  if (part == nullptr) return;
  const auto state = read_chunk(records_.subspan(index), part->shard->shard().worker_count());
  const auto match = state ? part->shard->take(*state, now_ns_) : ReplayedShard::Match::kImpossible;
  if (match == ReplayedShard::Match::kImpossible) ++report_.damaged;
  if (match != ReplayedShard::Match::kDifferent) return;
  differ(index, "chunk " + std::to_string(state->facts.chunk) + ": the state of its round " +
                    std::to_string(state->facts.rounds_finished) + " differs");
}

void PipelineReplayer::take_command(size_t index) {
  const auto command = body_of<CommandRecord>(records_[index]);
  const auto kind = static_cast<CommandKind>(command.command);
  const uint32_t number = records_[index].subject;
  if (kind == CommandKind::kRemove && parts_.count(number) != 0) remove(number);
  Part* part = known_part(records_[index]);
  if (part == nullptr) return;
  JobShard& shard = part->shard->shard();
  const bool is_of_rank = kind == CommandKind::kAdmit || kind == CommandKind::kExclude;
  if (is_of_rank && !may_change(shard, command)) {
    ++report_.damaged;
    return;
  }
  const bool is_replayed =
      is_of_rank || kind == CommandKind::kSetCredit || kind == CommandKind::kSetLearningRate;
  if (!is_replayed) return;
  engine_.execute({.kind = kind,
                   .shard = &shard,
                   .learning_rate = command.learning_rate,
                   .credit_bytes = command.credit_bytes,
                   .rank = command.rank,
                   .spi = command.spi,
                   .generation = static_cast<uint16_t>(command.generation)});
}

// Returns whether the command fulfils what the engine assumes of the control thread's commands.
bool PipelineReplayer::may_change(JobShard& shard, const CommandRecord& command) const {
  if (command.rank >= shard.worker_count()) return false;
  const Session& session = shard.sessions()[command.rank];
  if (static_cast<CommandKind>(command.command) == CommandKind::kAdmit) {
    return may_connect(command.spi, &session);
  }
  return std::none_of(shard.chunks().begin(), shard.chunks().end(),
                      [&](const Chunk& chunk) { return chunk.copy_rank == command.rank; });
}

void PipelineReplayer::remove(uint32_t number) {
  Part& part = parts_[number];
  if (part.is_removed) return;
  part.is_removed = true;
  for (const auto& [spi, rank] : part.rank_of) owners_.erase(spi);
  if (part.shard == nullptr) return;
  --installed_;
  engine_.execute({.kind = CommandKind::kRemove, .shard = &part.shard->shard()});
}

void PipelineReplayer::take_left(size_t index) {
  Part* part = known_part(records_[index]);
  if (part == nullptr) return;
  const auto left = body_of<LeftRecord>(records_[index]);
  note_result(*part, left);
  Chunk* chunk = part->shard->shard().find(left.chunk);
  if (chunk == nullptr || !part->shard->is_known(*chunk)) return;
  if (left.round + 1 != chunk->open_round()) {
    differ(index, "chunk " + std::to_string(left.chunk) +
                      ": the recorded box sent the result of round " + std::to_string(left.round) +
                      ", but in the replay round " + std::to_string(chunk->open_round()) +
                      " is open");
    return;
  }
  while (chunk->fanned_out_rounds != chunk->open_round()) {
    const size_t count = engine_.to_send().size();
    if (count == 0) break;
    engine_.sent(count);
  }
  // A result that was finished before the chunk's state was known has left too.
  chunk->fanned_out_rounds = chunk->open_round();
}

void PipelineReplayer::note_result(const Part& part, const LeftRecord& left) {
  const JobShard& shard = std::as_const(*part.shard).shard();
  ResultDigest& result = replay_.jobs[part.job].results[{shard.part, left.chunk, left.round}];
  if (result.epoch > shard.epoch) return;
  result = {shard.epoch, left.piece, left.digested_bytes, left.digest};
}

void PipelineReplayer::report_part(const Part& part) {
  if (part.shard == nullptr) return;
  JobReplay& job = replay_.jobs[part.job];
  JobShard& shard = part.shard->shard();
  job.chunk_rounds += shard.rounds_finished.get();
  for (const Session& session : shard.sessions()) {
    job.ranks[session.rank].last += session.last_arrivals.get();
  }
  for (const Chunk& chunk : shard.chunks()) {
    if (!part.shard->is_known(chunk)) continue;
    job.newest_round = std::max(job.newest_round, chunk.rounds_finished);
    const bool is_open = chunk.claimed_any != 0 || chunk.copy_rank != kNoRank;
    if (!is_open || part.is_removed) continue;
    OpenRound open{report_.index, chunk.id, chunk.rounds_finished, {}};
    for (const Session& session : shard.sessions()) {
      if (!session.present || chunk.claimed[session.rank] == chunk.full_mask) continue;
      open.missing.push_back(session.rank);
    }
    job.open_rounds.push_back(std::move(open));
  }
}

}  // namespace

FlightReplay replay(const std::vector<FlightImage>& images) {
  FlightReplay replay;
  for (const FlightImage& image : images) PipelineReplayer(image, replay).run();
  return replay;
}

}  // namespace pboxctl
