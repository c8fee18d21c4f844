#include "tests/sim/box_checker.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <utility>

#include "nic/quantize/reference.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/crc32c.h"
#include "nic/wire/path_probe.h"
#include "pipeline/reduce/reference.h"
#include "tests/sim/slot_checks.h"
#include "tests/sim/violation.h"
#include "tests/support/packet_bytes.h"
#include "tests/support/packet_verdicts.h"

namespace pbox::sim {
namespace {

using pipeline::Counter;

uint64_t crc_of(uint64_t crc, const void* data, size_t bytes) {
  return wire::crc32c(static_cast<uint32_t>(crc), static_cast<const std::byte*>(data), bytes);
}

// Returns the ranks that rounds wait for, as bits.
uint32_t present(const pipeline::JobShard& shard) {
  uint32_t ranks = 0;
  for (const auto& session : shard.sessions()) ranks |= uint32_t{session.present} << session.rank;
  return ranks;
}

}  // namespace

std::string place(const JobModel& job, const pipeline::Chunk& chunk, uint64_t round) {
  return job.title + " chunk " + std::to_string(chunk.id) + " round " + std::to_string(round);
}

void BoxChecker::installed(uint32_t pipeline, pipeline::JobShard& shard) {
  Shard entry;
  entry.shard = &shard;
  for (const auto& chunk : shard.chunks()) {
    entry.rounds_finished.push_back(chunk.rounds_finished);
    entry.copies.push_back(chunk.copy_rank != pipeline::kNoRank);
  }
  pipelines_[pipeline].shards.push_back(std::move(entry));
  pipelines_[pipeline].egress.add(shard);
}

uint64_t BoxChecker::bytes_on(uint32_t pipeline) const {
  uint64_t bytes = 0;
  for (const Shard& entry : pipelines_[pipeline].shards) {
    const pipeline::JobShard& shard = *entry.shard;
    const size_t chunks = shard.chunk_count();
    const bool answers = shard.delivery == wire::Delivery::kPull;
    bytes += shard.arena().size() + chunks * sizeof(pipeline::Chunk) +
             shard.worker_count() * sizeof(pipeline::Session) +
             pipeline::StragglerLedger::reserved_bytes(chunks) +
             (shard.grace.is_reserved() ? sync::RoundGrace::reserved_bytes(chunks) : 0) +
             pipeline::EgressQueue::reserved_bytes(limits::kSlotRing * chunks, answers);
  }
  return bytes;
}

void BoxChecker::check_memory(uint64_t counted_bytes) const {
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < pipelines_.size(); ++index) bytes += bytes_on(index);
  require(bytes <= counted_bytes, [&] {
    return "shards take " + std::to_string(bytes) + " bytes, but their box counts " +
           std::to_string(counted_bytes) + " bytes as memory of jobs";
  });
}

void BoxChecker::removed(uint32_t pipeline, const pipeline::JobShard& shard) {
  for (const Shard& entry : pipelines_[pipeline].shards) {
    if (entry.shard == &shard && entry.replay) entry.replay->check_end();
  }
  std::erase_if(pipelines_[pipeline].shards,
                [&](const Shard& entry) { return entry.shard == &shard; });
  pipelines_[pipeline].egress.remove(shard);
}

void BoxChecker::named(uint32_t pipeline, uint32_t spi, JobModel& job) {
  for (Shard& entry : pipelines_[pipeline].shards) {
    for (const auto& session : entry.shard->sessions()) {
      if (session.spi != spi) continue;
      entry.job = &job;
      for (const pipeline::Chunk& chunk : entry.shard->chunks()) {  // some may have moved here
        if (job.has_deltas(chunk.id) && !job.options.is_relaxed()) check_deltas(entry, chunk);
      }
      rack_.cluster.note_draw_seed(job, entry.shard->draw_seed);
      pipelines_[pipeline].egress.name(*entry.shard, job);
    }
    if (entry.job == &job && job.options.is_relaxed() && !entry.replay) {
      entry.replay = std::make_unique<SyncReplay>(*entry.shard, job);
    }
  }
}

BoxChecker::Tally BoxChecker::tally(const pipeline::Engine& engine) {
  Tally tally{.received = engine.counters().get(Counter::kRxPackets),
              .pulls = engine.counters().get(Counter::kPullsReceived)};
  for (const Counter counter : test::kPacketVerdicts)
    tally.verdicts += engine.counters().get(counter);
  return tally;
}

// Hashes all state that an accepted packet can change: sums, bits, rounds, and where answers go.
uint64_t BoxChecker::hash(const Pipeline& pipeline) {
  uint64_t hash = 0;
  for (const Shard& entry : pipeline.shards) {
    if (entry.shard->has_uplinks()) continue;  // results from the backup box change it too
    for (const auto& session : entry.shard->sessions()) {
      hash = crc_of(hash, &session.endpoint, sizeof(session.endpoint));
      hash = crc_of(hash, &session.newest_packet_number, sizeof(session.newest_packet_number));
      hash = crc_of(hash, &session.credit_bytes, sizeof(session.credit_bytes));
      hash = crc_of(hash, &session.challenged, sizeof(session.challenged));
      hash = crc_of(hash, &session.challenge, sizeof(session.challenge));
    }
    for (const auto& chunk : entry.shard->chunks()) {
      hash = crc_of(hash, chunk.claimed, entry.shard->worker_count() * sizeof(uint64_t));
      hash = crc_of(hash, &chunk.rounds_finished, sizeof(chunk.rounds_finished));
      // In a job of collectives the elements are bytes.
      const size_t element_bytes = entry.shard->is_collective ? 1 : sizeof(float);
      for (const float* values : {chunk.accumulator[0], chunk.accumulator[1], chunk.weights}) {
        if (values != nullptr) hash = crc_of(hash, values, chunk.elements * element_bytes);
      }
      const bool has_deltas = chunk.deltas.master != nullptr;
      // Memory for pushes and results has the size of blocks even while the open round carries
      // weights in full.
      const size_t wire_bytes =
          has_deltas ? wire::payload_bytes(chunk.deltas.dtype, chunk.elements) : chunk.wire_bytes;
      hash = crc_of(hash, chunk.result[0], wire_bytes);
      if (has_deltas) {
        hash = crc_of(hash, chunk.deltas.master, chunk.elements * sizeof(float));
      }
      if (chunk.residue != nullptr) {
        hash = crc_of(hash, chunk.residue, chunk.elements * sizeof(float));
      }
      if (chunk.pushed == nullptr) continue;
      hash = crc_of(hash, chunk.pushed, entry.shard->worker_count() * wire_bytes);
    }
  }
  return hash;
}

uint64_t BoxChecker::state_of(uint32_t index) const {
  const Pipeline& pipeline = pipelines_[index];
  uint64_t state = hash(pipeline);
  const auto add = [&state](uint64_t value) { state = crc_of(state, &value, sizeof(value)); };
  for (const Shard& entry : pipeline.shards) {
    for (const auto& session : entry.shard->sessions()) {
      add(session.reachable);
      add(session.is_settled);
      add(session.seal.opens_before());
      add(session.last_packet_ns.get());
      add(session.seal.next_number());
      add(session.seal.updates_sent());
      add(session.seal.updates_received());
      add(session.duplicates.get());
      add(session.bytes_received.get());
      add(static_cast<uint64_t>(session.resend_budget_bytes));
    }
  }
  return state;
}

void BoxChecker::before_turn(uint32_t index, const pipeline::Engine& engine, bool damaged,
                             uint64_t now_ns) {
  Pipeline& pipeline = pipelines_[index];
  pipeline.before = tally(engine);
  pipeline.damaged = damaged;
  pipeline.replayed = false;
  for (Shard& entry : pipeline.shards) {
    if (entry.job != nullptr && entry.job->may_lack_ranks()) entry.present = present(*entry.shard);
    if (entry.replay) entry.replay->begin_turn(now_ns);
  }
  follow_keys(pipeline);
  if (damaged) pipeline.state_hash = hash(pipeline);
}

void BoxChecker::sealed(uint32_t spi, SealMirror from_worker, SealMirror from_box) {
  mirrors_[spi] = {std::move(from_worker), std::move(from_box)};
}

// Returns whether the box accepts the packet as authentic. Must be called once for each packet that
// the box receives.
bool BoxChecker::opens(uint32_t index, wire::Parsed& parsed) {
  const uint32_t spi = parsed.header.spi;
  if (rack_.options.suite == seal::Suite::kNone) {
    return wire::verify_tag({rack_.options.payload_crc}, parsed);
  }
  const auto found = mirrors_.find(spi);
  return pipeline::spi_pipeline(spi) == index && found != mirrors_.end() &&
         found->second.from_worker.open({}, parsed, room_.data());
}

nic::TxPacket BoxChecker::opened(const nic::TxPacket& packet) {
  const auto found = mirrors_.find(packet.header.spi & ~wire::kSpiToWorker);
  if (rack_.options.suite == seal::Suite::kNone || found == mirrors_.end()) return packet;
  packet_ = test::packet_bytes(packet);
  wire::Parsed parsed;
  const bool is_whole = wire::parse(packet_.data(), static_cast<uint32_t>(packet_.size()),
                                    parsed) == wire::Reject::kNone;
  require(is_whole && found->second.from_box.open({}, parsed, room_.data()),
          "a packet of the box does not open with its session's keys");
  nic::TxPacket plain = packet;
  plain.payload = parsed.payload;
  return plain;
}

void BoxChecker::follow_keys(const Pipeline& pipeline) {
  for (const Shard& entry : pipeline.shards) {
    for (const auto& session : entry.shard->sessions()) {
      const auto found = mirrors_.find(session.spi);
      if (found != mirrors_.end()) found->second.from_worker.follow(session.seal);
    }
  }
}

void BoxChecker::replay(uint32_t index, const SimPort& port) {
  Pipeline& pipeline = pipelines_[index];
  if (std::exchange(pipeline.replayed, true)) return;
  for (const Packet& packet : port.held()) {
    pipeline.destinations.received(packet);
    wire::Parsed parsed;
    const auto reject =
        wire::parse(packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), parsed);
    if (reject != wire::Reject::kNone || !opens(index, parsed)) continue;
    for (const Shard& entry : pipeline.shards) {
      const auto& sessions = entry.shard->sessions();
      const bool is_its = std::any_of(
          sessions.begin(), sessions.end(),
          [&](const pipeline::Session& session) { return session.spi == parsed.header.spi; });
      if (is_its && entry.shard->epoch == parsed.header.epoch) {
        pipeline.destinations.accepted(parsed.header);
      }
    }
    const bool is_pull = parsed.header.type() == wire::PacketType::kPull;
    if (is_pull && wire::is_path_probe(parsed.header)) continue;
    for (Shard& entry : pipeline.shards) {
      if (!entry.replay) continue;
      for (const auto& session : entry.shard->sessions()) {
        const bool is_its = entry.replay->is_of(parsed.header.spi, session.rank);
        // A PULL from an address that is not proved is answered only with a challenge.
        const bool is_challenged = is_pull && session.known_host && !session.is_at(packet.from);
        if (is_its && !is_challenged) entry.replay->received(session.rank, parsed);
      }
    }
  }
}

void BoxChecker::sent(uint32_t index, const SimPort& port, const nic::TxPacket& packet) {
  Pipeline& pipeline = pipelines_[index];
  replay(index, port);
  for_each_session(pipeline, [&](const pipeline::Session& session) {
    const bool is_its = (session.spi | wire::kSpiToWorker) == packet.header.spi;
    if (is_its) pipeline.destinations.sent(session, packet);
  });
  if (is_overtaken(pipeline, packet.header)) return;
  const nic::TxPacket plain = opened(packet);
  for (const Shard& entry : pipeline.shards) {
    if (entry.job != nullptr && entry.job->collectives && !entry.job->options.rogue) {
      check_slot_receiver(*entry.job, *entry.shard, plain.header);
    }
    if (!entry.replay) continue;
    for (const auto& session : entry.shard->sessions()) {
      const bool is_its = (session.spi | wire::kSpiToWorker) == packet.header.spi;
      if (is_its) entry.replay->check_sent(session.rank, plain);
    }
  }
}

// Returns whether the packet is a resend that a full port kept back and whose result the box has
// replaced since. Its receiver has the result already, and refuses the packet.
bool BoxChecker::is_overtaken(const Pipeline& pipeline, const wire::Header& header) {
  if (header.type() != wire::PacketType::kResult) return false;
  for (const Shard& entry : pipeline.shards) {
    for (const auto& session : entry.shard->sessions()) {
      if ((session.spi | wire::kSpiToWorker) != header.spi || entry.replay) continue;
      const pipeline::Chunk* chunk = entry.shard->find(header.chunk);
      return chunk != nullptr &&
             (chunk->is_stepped || wire::round_distance(header.round + 1, chunk->open_round()) < 0);
    }
  }
  return false;
}

void BoxChecker::after_turn(uint32_t index, const pipeline::Engine& engine, const SimPort& port,
                            bool commanded) {
  Pipeline& pipeline = pipelines_[index];
  replay(index, port);
  for_each_session(pipeline,
                   [&](const pipeline::Session& session) { pipeline.destinations.note(session); });
  bool any_cut = false;
  for (const Shard& entry : pipeline.shards) {
    if (!entry.replay) continue;
    any_cut = entry.replay->end_graces() || any_cut;
    if (commanded) entry.replay->note_command();
  }
  check_tally(pipeline, engine, port);
  check_resends(pipeline);
  if (commanded) check_all(pipeline);
  require(!pipeline.damaged || any_cut || hash(pipeline) == pipeline.state_hash,
          "a packet that is not authentic changed what the box holds");
  require(!pipeline.damaged || tally(engine).pulls == pipeline.before.pulls,
          "a PULL that is not authentic is answered");
  for (const Packet& packet : port.held()) {
    wire::Parsed parsed;
    if (wire::parse(packet.bytes.data(), static_cast<uint32_t>(packet.bytes.size()), parsed) !=
        wire::Reject::kNone) {
      continue;
    }
    for (Shard& entry : pipeline.shards) {
      const auto& sessions = entry.shard->sessions();
      if (std::any_of(sessions.begin(), sessions.end(),
                      [&](const auto& session) { return session.spi == parsed.header.spi; })) {
        check_touched(entry, parsed.header);
        if (entry.replay && port.took_all()) entry.replay->check_answers(parsed.header.chunk);
      }
    }
  }
}

void BoxChecker::check_tally(const Pipeline& pipeline, const pipeline::Engine& engine,
                             const SimPort& port) const {
  const Tally now = tally(engine);
  uint64_t pulls_max = 0;
  for (const Packet& packet : port.held()) {
    pulls_max += !packet.bytes.empty() &&
                 (packet.bytes[0] & std::byte{15}) == std::byte(wire::PacketType::kPull);
  }
  const uint64_t received = now.received - pipeline.before.received;
  const uint64_t verdicts = now.verdicts - pipeline.before.verdicts;
  const uint64_t pulls = now.pulls - pipeline.before.pulls;
  const bool sound = now.received == port.packets_given() && received == port.held().size() &&
                     pulls <= pulls_max && verdicts <= received &&
                     verdicts >= received - pulls_max && verdicts + pulls >= received;
  require(sound, [&] {
    return "conservation: a box received " + std::to_string(received) + " packets, but gave " +
           std::to_string(verdicts) + " a verdict and counted " + std::to_string(pulls) + " PULLs";
  });
}

// Checks that a session overdraws its budget for resends by one chunk at most.
void BoxChecker::check_resends(const Pipeline& pipeline) {
  constexpr int64_t kFragmentsMax = 64;
  for (const Shard& entry : pipeline.shards) {
    const int64_t overdraft_max = kFragmentsMax * entry.shard->fragment_bytes;
    for (const auto& session : entry.shard->sessions()) {
      require(session.resend_budget_bytes > -overdraft_max, [&] {
        return "resends: rank " + std::to_string(session.rank) + " got resends of " +
               std::to_string(-session.resend_budget_bytes) + " bytes more than its budget";
      });
    }
  }
}

void BoxChecker::check_touched(Shard& entry, const wire::Header& header) {
  pipeline::Chunk* chunk = entry.shard->find(header.chunk);
  if (chunk == nullptr || entry.job == nullptr) return;
  if (entry.replay) {
    entry.replay->check_chunk(header.chunk);
    entry.replay->check_weights(header.chunk, header.fragment);
    return;
  }
  check_chunk(entry, *chunk);
  if (header.type() == wire::PacketType::kZeros) {  // the packet may name any fragment
    for (uint32_t fragment = 0; fragment < chunk->fragment_count; ++fragment) {
      check_sum(entry, *chunk, fragment);
    }
  } else if (header.fragment < chunk->fragment_count) {
    check_sum(entry, *chunk, header.fragment);
  }
}

void BoxChecker::check_chunk(Shard& entry, pipeline::Chunk& chunk) {
  JobModel& job = *entry.job;
  const auto index = static_cast<size_t>(&chunk - entry.shard->chunks().data());
  uint64_t& seen = entry.rounds_finished[index];
  // The open round is checked before it leaves for the backup box, while the chunk still has that
  // round's layout.
  if (job.has_deltas(chunk.id) && chunk.is_stepped) check_deltas(entry, chunk);
  if (chunk.rounds_finished != seen) {
    require(chunk.rounds_finished == seen + 1, [&] {
      return place(job, chunk, chunk.open_round()) + ": a round was skipped or finished twice";
    });
    require(chunk.rounds_finished <= job.rounds(chunk.id) || job.options.rogue, [&] {
      return place(job, chunk, chunk.open_round()) + ": a round finished that no rank had begun";
    });
    ++seen;
    // A copied result contains the ranks that were present when a rank consumed it, so none is
    // required here. A rank that was admitted in this turn may have joined after the round.
    const uint32_t ranks =
        present(*entry.shard) & (job.may_lack_ranks() ? entry.present : UINT32_MAX);
    check_result(entry, chunk, entry.copies[index] ? 0 : ranks);
  }
  uint64_t any = 0;
  uint32_t complete = 0;
  for (uint32_t rank = 0; rank < entry.shard->worker_count(); ++rank) {
    require((chunk.claimed[rank] & ~chunk.full_mask) == 0, [&] {
      return place(job, chunk, chunk.open_round()) + ": a claimed bit belongs to no fragment";
    });
    any |= chunk.claimed[rank];
    complete += entry.shard->sessions()[rank].present && chunk.claimed[rank] == chunk.full_mask;
  }
  // A chunk that awaits a copy has the bits of all other ranks claimed, so masks are not compared.
  const bool copied = chunk.copy_rank != pipeline::kNoRank;
  entry.copies[index] = copied;
  const uint32_t present_count = entry.shard->present_count();
  // A full round goes to the backup box before it is finished. A round that the guard rejects is
  // never finished.
  const bool goes_on =
      complete == present_count && (chunk.is_stepped || entry.shard->has_rejected());
  // In a job of collectives a push without data claims fragments that the round does not have.
  const bool is_summed =
      job.collectives ? (chunk.claimed_any & ~any) == 0 : any == chunk.claimed_any;
  require((copied || is_summed) && complete == chunk.complete_workers &&
              (complete < present_count || present_count == 0 || goes_on),
          [&] { return place(job, chunk, chunk.open_round()) + ": masks and counts disagree"; });
}

// Returns the sum of the pushes of a fragment that the box has kept. With numerics `ordered` the
// box itself adds nothing before the round is full.
std::vector<float> sum_of_kept(const pipeline::JobShard& shard, const pipeline::Chunk& chunk,
                               uint32_t fragment, uint32_t ranks, uint32_t count) {
  std::vector<float> sum(count, 0.0f);
  for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    const std::byte* pushed = shard.pushed(chunk, rank, fragment);
    if (wire::is_in_blocks(chunk.dtype)) {
      quantize::reference::accumulate(chunk.dtype, sum.data(), pushed, count, FLT_MAX, true, false);
    } else if (shard.guard.policy == wire::Guard::kZero) {
      reduce::reference::add_sound(chunk.dtype, sum.data(), pushed, count, shard.value_limit);
    } else {
      reduce::add(chunk.dtype, sum.data(), pushed, count);
    }
  }
  return sum;
}

// Checks that a fragment's sum contains the push of each rank whose bit is claimed, exactly once.
void BoxChecker::check_sum(Shard& entry, const pipeline::Chunk& chunk, uint32_t fragment) {
  JobModel& job = *entry.job;
  if (job.collectives && job.options.rogue) return;
  if (job.collectives) return check_slot_sum(job, *entry.shard, chunk, fragment);
  const uint32_t round = chunk.open_round();
  const bool initial = job.options.mode == pipeline::Mode::kOptimize && round == 0;
  const uint64_t bit = uint64_t{1} << fragment;
  const bool copied = chunk.copy_rank != pipeline::kNoRank;
  if (!job.has_known_sums() || initial || copied || (chunk.claimed_any & bit) == 0) return;
  if (chunk.is_stepped) return;  // the accumulator holds weights now
  uint32_t ranks = 0;
  for (uint32_t rank = 0; rank < job.options.workers; ++rank) {
    if ((chunk.claimed[rank] & bit) != 0) ranks |= 1u << rank;
  }
  const uint32_t first = entry.shard->fragment_offset_elements(chunk, fragment);
  const auto count = static_cast<uint32_t>(entry.shard->fragment_elements(chunk, fragment));
  const auto kept = chunk.pushed != nullptr
                        ? sum_of_kept(*entry.shard, chunk, fragment, ranks, count)
                        : std::vector<float>();
  const float* sum = kept.empty() ? chunk.accumulator[round & 1] + first : kept.data();
  const auto what = job.wrong_sums(chunk.id, round, ranks, first, {sum, count});
  require(!what, [&] { return place(job, chunk, round) + ", " + *what; });
}

// `ranks` are the ranks that the result must contain.
void BoxChecker::check_result(Shard& entry, const pipeline::Chunk& chunk, uint32_t ranks) {
  JobModel& job = *entry.job;
  if (job.has_deltas(chunk.id)) return check_deltas(entry, chunk);
  // The shard has no results of rounds before its first round.
  if (chunk.rounds_finished == chunk.first_round || chunk.is_stepped) return;
  if (job.collectives && job.options.rogue) return;
  if (job.collectives) return check_slot_result(job, chunk);
  const uint32_t round = chunk.open_round() - 1;
  if (job.is_compressed(chunk.id)) return check_blocks(entry, chunk);
  const auto what = job.wrong(chunk.id, round, ranks, chunk.result[round & 1]);
  require(!what, [&] { return place(job, chunk, round) + ", at the box: " + *what; });
}

void BoxChecker::check_all(Pipeline& pipeline) {
  for (Shard& entry : pipeline.shards) {
    if (entry.replay) entry.replay->check_all();
    if (entry.job == nullptr || entry.replay) continue;
    for (pipeline::Chunk& chunk : entry.shard->chunks()) {
      check_chunk(entry, chunk);
      check_result(entry, chunk, 0);
      for (uint32_t index = 0; index < chunk.fragment_count; ++index) {
        check_sum(entry, chunk, index);
      }
    }
  }
}

void BoxChecker::check_all() {
  for (Pipeline& pipeline : pipelines_) check_all(pipeline);
}

}  // namespace pbox::sim
