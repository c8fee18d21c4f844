#include <algorithm>
#include <cstring>
#include <utility>

#include "nic/wire/chunk_layout.h"
#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/state/backup_block.h"
#include "pipeline/state/state_cut.h"

namespace pbox::pipeline {
namespace {

Counter counter_of(wire::Reject reject) {
  switch (reject) {
    case wire::Reject::kTooShort: return Counter::kRejectShort;
    case wire::Reject::kVersion: return Counter::kRejectVersion;
    case wire::Reject::kType: return Counter::kRejectType;
    case wire::Reject::kReserved: return Counter::kRejectReserved;
    case wire::Reject::kLength: return Counter::kRejectLength;
    default: return Counter::kRejectTag;
  }
}

// Pushes of the open round are kept until it is full.
bool is_kept(const JobShard& shard, const Chunk& chunk) {
  return shard.numerics == wire::Numerics::kOrdered && chunk.copy_rank == kNoRank;
}

// The open round brings weights, not gradients.
bool is_given_weights(const JobShard& shard, const Chunk& chunk) {
  return shard.mode == Mode::kOptimize &&
         (chunk.rounds_finished == 0 || chunk.copy_rank != kNoRank);
}

}  // namespace

void Engine::on_burst(std::span<const nic::RxPacket> packets, uint64_t now_ns) {
  if (packets.empty()) return;
  now_ns_ = now_ns;
  const bool sampled = clock_.sampling() && !tracing_;
  const bool in_cache = sampled ? fetch_choice_.trial() : fetch_choice_.in_cache();
  const uint64_t start_cycles = sampled ? cycle_count() : 0;
  if (tracing_) [[unlikely]] {
    on_packets<AheadOfLarge, true>(packets, now_ns);
  } else if (in_cache) {
    on_packets<AheadOfCached, false>(packets, now_ns);
  } else if (packets[0].bytes <= kSmallPacketBytes) {
    on_packets<AheadOfSmall, false>(packets, now_ns);
  } else {
    on_packets<AheadOfLarge, false>(packets, now_ns);
  }
  if (sampled && aggregated_bytes_ >= FetchChoice::kBytesMin) [[unlikely]] {
    if (in_cache != fetch_choice_.in_cache()) clock_.leave_out();
    fetch_choice_.note(cycle_count() - start_cycles, aggregated_bytes_);
  }
  if (flight_.written() >= next_state_) [[unlikely]]
    record_state();
  counters_.add(Counter::kRxPackets, packets.size());
  counters_.add(Counter::kAggregated, std::exchange(aggregated_, 0));
  counters_.add(Counter::kAggregatedBytes, std::exchange(aggregated_bytes_, 0));
}

template <typename Ahead, bool kTraces>
void Engine::on_packets(std::span<const nic::RxPacket> packets, uint64_t now_ns) {
  static constexpr nic::RxPacket kNone;
  size_t fetched = 0;
  uint64_t bytes = 0;
  for (size_t index = 0; index < packets.size(); ++index) {
    for (; fetched < std::min(packets.size(), index + 1 + Ahead::kPackets); ++fetched) {
      fetch<Ahead>(packets[fetched]);
    }
    if constexpr (Ahead::kInPieces) {
      following_ = index + 1 < packets.size() ? &packets[index + 1] : &kNone;
    }
    bytes += packets[index].bytes;
    FlightRecord& record = flight_.add_packet(packets[index], now_ns);
    const uint64_t aggregated = aggregated_;
    if constexpr (kTraces) {
      const TracedPush traced = before_push(packets[index]);
      on_packet(packets[index], now_ns);
      after_push(traced);
    } else {
      on_packet(packets[index], now_ns);
    }
    if (aggregated_ != aggregated) [[likely]] {
      record.verdict = Verdict::kAggregated;
    } else {
      note_verdict(record, packets[index]);
    }
  }
  following_ = nullptr;
  counters_.add(Counter::kRxBytes, bytes);
}

void Engine::on_packet(const nic::RxPacket& packet, uint64_t now_ns) {
  wire::Parsed parsed;
  const wire::Reject reject = wire::parse(packet.data, packet.bytes, parsed);
  if (reject != wire::Reject::kNone) {
    counters_.add(counter_of(reject));
    return;
  }
  SessionEntry* entry = authenticate(parsed);
  if (entry == nullptr) return;
  // A session of before a crash may have had the same number: it moves nobody.
  if (parsed.header.epoch == entry->shard->epoch) {
    note_sender(*entry->session, packet, parsed.header, now_ns);
  }
  clock_.mark(Phase::kAuthenticate);
  switch (parsed.header.type()) {
    case wire::PacketType::kPush:
    case wire::PacketType::kState:
      if (entry->shard->sync.model == wire::SyncModel::kBsp) [[likely]] {
        on_push(*entry->shard, *entry->session, parsed, now_ns);
      } else {
        on_sync_push(*entry->shard, *entry->session, parsed, now_ns);
      }
      return;
    case wire::PacketType::kPull: on_pull(*entry->shard, *entry->session, parsed, now_ns); return;
    default: counters_.add(Counter::kRejectType);
  }
}

Engine::SessionEntry* Engine::authenticate(const wire::Parsed& parsed) {
  const uint32_t spi = parsed.header.spi;
  if (spi_pipeline(spi) != options_.pipeline_index) {
    counters_.add(Counter::kRejectQueue);
    return nullptr;
  }
  SessionEntry& entry = sessions_[wire::spi_index(spi)];
  if (entry.session == nullptr || entry.spi != spi) {
    counters_.add(Counter::kRejectSession);
    return nullptr;
  }
  if (!wire::verify_tag(options_.tag, parsed)) {
    counters_.add(Counter::kRejectTag);
    return nullptr;
  }
  return &entry;
}

// The newest authentic packet says where the worker is; an old or replayed one cannot move it.
void Engine::note_sender(Session& session, const nic::RxPacket& packet, const wire::Header& header,
                         uint64_t now_ns) {
  session.last_packet_ns.set(now_ns);
  if (session.reachable && header.packet_number <= session.newest_packet_number) return;
  session.newest_packet_number = header.packet_number;
  session.endpoint = packet.from;
  session.reachable = true;
}

Chunk* Engine::check_chunk(JobShard& shard, const wire::Header& header) {
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return nullptr;
  const int32_t ahead = wire::round_distance(header.round, chunk->open_round());
  // Before the first round there is none whose result could be asked for.
  if (ahead > 0 || (ahead == -1 && chunk->rounds_finished == chunk->first_round)) {
    counters_.add(Counter::kRejectRound);
    return nullptr;
  }
  // Who asks for a round long past is told where the chunk is: a process in a lost rank's place may
  // have been overtaken by what its predecessor had pushed.
  if (ahead < -1 && header.type() != wire::PacketType::kPull) {
    counters_.add(Counter::kStale);
    return nullptr;
  }
  return chunk;
}

void Engine::on_push(JobShard& shard, Session& session, const wire::Parsed& parsed,
                     uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = check_chunk(shard, header);
  if (chunk == nullptr || !check_fragment(shard, *chunk, header)) return;
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (header.round != chunk->open_round()) {  // done: the worker may have missed the result
    counters_.add(Counter::kDuplicate);
    session.duplicates.add(1);
    if (shard.delivery == wire::Delivery::kBroadcast) {
      request_resend(shard, session, *chunk, bit, now_ns);
    }
    return;
  }
  if ((chunk->claimed[session.rank] & bit) != 0) {
    counters_.add(Counter::kDuplicate);
    session.duplicates.add(1);
    return;
  }
  // A round that somebody has consumed is copied, never summed again; any other is summed.
  if ((header.type() == wire::PacketType::kState) != (chunk->copy_rank == session.rank)) {
    counters_.add(Counter::kRejectType);
    return;
  }
  // Who pushes the last fragment of a round holds the result of the one before, if it keeps the
  // protocol; one that does not must neither grow the egress queue nor change what is still to
  // leave.
  if ((chunk->claimed[session.rank] | bit) == chunk->full_mask &&
      chunk->complete_workers + 1u == shard.present_count() &&
      chunk->fanned_out_rounds != chunk->open_round()) {
    counters_.add(Counter::kRejectRound);
    return;
  }
  absorb(shard, session, *chunk, parsed);
}

void Engine::push_into_slot(JobShard& shard, Session& session, const wire::Parsed& parsed,
                            uint64_t now_ns) {
  on_push(shard, session, parsed, now_ns);
}

void Engine::absorb(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (chunk.claimed_any == 0) [[unlikely]]
    record_chunk(shard, chunk, true);
  chunk.claimed[session.rank] |= bit;
  const size_t offset = shard.fragment_offset_elements(chunk, header.fragment);
  const size_t elements = header.payload_bytes / wire::dtype_bytes(chunk.dtype);
  const auto type = static_cast<size_t>(chunk.dtype);
  bool finite = true;
  if (is_given_weights(shard, chunk)) {
    // Initial weights: rank 0's count, the others take part so that the round is a barrier. Those
    // of a copy are who gives it back's; a snapshot's are here already.
    if ((session.rank == 0 && !chunk.is_restored) || chunk.copy_rank != kNoRank) {
      finite = kernels_.store[type](chunk.weights + offset, parsed.payload, elements);
    }
  } else if (is_kept(shard, chunk)) [[unlikely]] {
    std::memcpy(shard.pushed(chunk, session.rank, header.fragment), parsed.payload,
                header.payload_bytes);
  } else {
    float* accumulator = chunk.accumulator[chunk.open_round() & 1] + offset;
    const auto sum = (chunk.claimed_any & bit) == 0 ? kernels_.store[type] : kernels_.add[type];
    finite = following_ == nullptr
                 ? sum(accumulator, parsed.payload, elements)
                 : sum_in_pieces(sum, accumulator, {parsed.payload, header.payload_bytes},
                                 wire::dtype_bytes(chunk.dtype), *following_);
  }
  // What a rank consumed is everybody's.
  if (!finite && header.type() == wire::PacketType::kPush) [[unlikely]]
    note_nonfinite(session, chunk.id, chunk.open_round());
  chunk.claimed_any |= bit;
  if (chunk.copy_rank != kNoRank && shard.partial) {
    chunk.contributors[chunk.open_round() & 1][header.fragment] = static_cast<uint16_t>(
        header.contributors() != 0 ? header.contributors() : shard.worker_count());
  }
  ++aggregated_;
  aggregated_bytes_ += header.payload_bytes;
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  clock_.mark(Phase::kAdd);

  if (chunk.claimed[session.rank] != chunk.full_mask) return;
  if (++chunk.complete_workers < shard.workers_needed(chunk)) {
    shard.stragglers.arrived(shard.index_of(chunk), now_ns_);
    return;
  }
  note_last(shard, session, chunk);
  end_round(shard, chunk);
  clock_.mark(Phase::kFinish);
}

void Engine::note_nonfinite(Session& session, uint32_t chunk, uint32_t round) {
  session.nonfinite.add(1);
  session.nonfinite_chunk_round.set(uint64_t{chunk} << 32 | round);
  session.nonfinite_at_ns.set(now_ns_);
}

void Engine::note_last(JobShard& shard, Session& session, const Chunk& chunk) {
  session.last_arrivals.add(1);
  const auto [skew_ns, late_ns] = shard.stragglers.finished(
      shard.index_of(chunk), chunk.rounds_finished, session.rank, now_ns_);
  session.late_ns.add(late_ns);
  if (late_ns <= session.worst_late_ns.get()) return;
  session.worst_late_ns.set(late_ns);
  session.worst_chunk_round.set(uint64_t{chunk.id} << 32 | chunk.open_round());
  session.worst_at_ns.set(now_ns_);
}

// All of this box's ranks are in.
void Engine::end_round(JobShard& shard, Chunk& chunk) {
  if (is_kept(shard, chunk) && !is_given_weights(shard, chunk)) [[unlikely]] {
    add_in_order(shard, chunk);
  }
  if (shard.uplink == nullptr) [[likely]] {
    finish_round(shard, chunk);
  } else if (shard.mode == Mode::kAggregate) {
    shard.uplink->send({chunk.id, chunk.accumulator[chunk.open_round() & 1]});
  } else {
    make_result(shard, chunk);
    chunk.is_stepped = true;
    seal(chunk.weights, shard.optimizer.kind, chunk.elements, chunk.rounds_made(), chunk.steps());
    shard.uplink->send({chunk.id, chunk.weights});
  }
}

// Numerics ordered: rank 0 first, of whom something has come.
void Engine::add_in_order(JobShard& shard, Chunk& chunk) {
  const auto type = static_cast<size_t>(chunk.dtype);
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    float* sum =
        chunk.accumulator[chunk.open_round() & 1] + shard.fragment_offset_elements(chunk, fragment);
    const size_t elements =
        wire::fragment_length(chunk.wire_bytes, shard.fragment_bytes, fragment) /
        wire::dtype_bytes(chunk.dtype);
    bool is_first = true;
    for (Session& session : shard.sessions()) {
      if ((chunk.claimed[session.rank] >> fragment & 1) == 0) continue;
      const auto kernel = is_first ? kernels_.store[type] : kernels_.add[type];
      if (!kernel(sum, shard.pushed(chunk, session.rank, fragment), elements)) {
        note_nonfinite(session, chunk.id, chunk.open_round());
      }
      is_first = false;
    }
  }
}

bool Engine::finish_returned(uint64_t now_ns) {
  now_ns_ = now_ns;
  bool any = false;
  for (JobShard* shard : shards_) {
    uint32_t id = 0;
    while (shard->uplink != nullptr && shard->uplink->take(id)) {
      Chunk& chunk = *shard->find(id);
      if (!std::exchange(chunk.is_stepped, false)) make_result(*shard, chunk);
      give_out(*shard, chunk);
      any = true;
    }
  }
  return any;
}

void Engine::finish_round(JobShard& shard, Chunk& chunk) {
  make_result(shard, chunk);
  give_out(shard, chunk);
}

void Engine::make_result(JobShard& shard, Chunk& chunk) {
  const uint32_t slot = chunk.open_round() & 1;
  const bool copied = chunk.copy_rank != kNoRank;
  const bool scaled = count_contributors(shard, chunk);
  if (shard.cut != nullptr) [[unlikely]]
    shard.cut->before_round(shard, chunk);
  if (shard.mode == Mode::kOptimize) {
    if (!is_given_weights(shard, chunk)) run_optimizer(shard, chunk, scaled);
    if (chunk.dtype != wire::Dtype::kF32) {
      kernels_.narrow[static_cast<size_t>(chunk.dtype)](chunk.result[slot], chunk.weights,
                                                        chunk.elements);
    }
  } else {
    if (shard.reduction == Reduction::kMean && !scaled && !copied) {
      const uint32_t workers = shard.uplink ? shard.uplink->workers() : shard.worker_count();
      kernels_.scale(chunk.accumulator[slot], 1.0f / static_cast<float>(workers), chunk.elements);
    }
    if (chunk.dtype != wire::Dtype::kF32) {
      kernels_.narrow[static_cast<size_t>(chunk.dtype)](chunk.result[slot], chunk.accumulator[slot],
                                                        chunk.elements);
    }
  }
}

void Engine::give_out(JobShard& shard, Chunk& chunk) {
  const uint32_t round = chunk.open_round();
  if (chunk.sync != nullptr) close_round(shard, chunk);
  std::memset(chunk.claimed, 0, shard.worker_count() * sizeof(uint64_t));
  chunk.claimed_any = 0;
  chunk.complete_workers = 0;
  chunk.copy_rank = kNoRank;
  ++chunk.rounds_finished;
  counters_.add(Counter::kRoundsFinished);
  shard.rounds_finished.add(1);
  if (shard.trace != nullptr) [[unlikely]] {
    trace_round(shard, chunk, round, TraceEvent::Kind::kFull);
  }
  if (chunk.sync == nullptr) shard.egress.push(&chunk, round, chunk.priority);
}

// Fragments of a round that ended without a rank may hold its part or not: each is divided by the
// number of those who are in it.
bool Engine::count_contributors(JobShard& shard, Chunk& chunk) {
  if (!shard.partial || chunk.copy_rank != kNoRank) return false;
  const uint32_t slot = chunk.open_round() & 1;
  uint16_t* counts = chunk.contributors[slot];
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    counts[fragment] = 0;
    for (uint32_t rank = 0; rank < shard.worker_count(); ++rank) {
      counts[fragment] =
          static_cast<uint16_t>(counts[fragment] + (chunk.claimed[rank] >> fragment & 1));
    }
  }
  const bool is_whole =
      shard.present_count() == shard.worker_count() && shard.sync.model != wire::SyncModel::kDrop;
  if (is_whole || is_given_weights(shard, chunk) || shard.reduction == Reduction::kSum)
    return false;
  for (uint32_t fragment = 0; fragment < chunk.fragment_count; ++fragment) {
    const uint32_t bytes = wire::fragment_length(chunk.wire_bytes, shard.fragment_bytes, fragment);
    reduce::kernels().scale(
        chunk.accumulator[slot] + shard.fragment_offset_elements(chunk, fragment),
        1.0f / static_cast<float>(counts[fragment]), bytes / wire::dtype_bytes(chunk.dtype));
  }
  return true;
}

void Engine::run_optimizer(JobShard& shard, Chunk& chunk, bool scaled) {
  const bool is_mean = shard.reduction == Reduction::kMean && !scaled;
  const float gradient_scale = is_mean ? 1.0f / static_cast<float>(shard.worker_count()) : 1.0f;
  const auto parameters =
      optimizer::step_parameters(shard.optimizer, chunk.lr_scale, chunk.weight_decay,
                                 gradient_scale, chunk.rounds_finished - chunk.stateless_round);
  optimizer::step(shard.optimizer, parameters, chunk.weights, chunk.state,
                  chunk.accumulator[chunk.open_round() & 1], chunk.elements);
}

void Engine::on_pull(JobShard& shard, Session& session, const wire::Parsed& parsed,
                     uint64_t now_ns) {
  counters_.add(Counter::kPullsReceived);
  if (parsed.header.payload_bytes != sizeof(wire::PullPayload)) {
    counters_.add(Counter::kRejectLength);
    return;
  }
  if (shard.sync.model != wire::SyncModel::kBsp) {
    on_sync_pull(shard, session, parsed, now_ns);
    return;
  }
  Chunk* chunk = check_chunk(shard, parsed.header);
  if (chunk == nullptr) return;
  if (parsed.header.round + 1 == chunk->open_round() && !chunk->is_stepped) {
    wire::PullPayload pull;
    std::memcpy(&pull, parsed.payload, sizeof(pull));
    const uint64_t mask = chunk->full_mask & ~pull.held_mask;
    if (chunk->pulled != nullptr && answer_pull(shard, session, *chunk, mask)) return;
    if (request_resend(shard, session, *chunk, mask, now_ns)) return;
  }
  send_status(shard, session, *chunk, parsed.header);
}

// Delivery by pull. The first copy of a result for each worker is no resend: nothing bounds it but
// the queue.
bool Engine::answer_pull(JobShard& shard, const Session& session, Chunk& chunk, uint64_t mask) {
  uint32_t& pulled = chunk.pulled[session.rank];
  if (mask == 0 || pulled == chunk.open_round()) return false;
  const Resend asked{&chunk, chunk.open_round() - 1, session.rank, mask};
  if (!shard.egress.push_answer(asked, chunk.priority)) {
    counters_.add(Counter::kResendsRefused);
    return false;
  }
  pulled = chunk.open_round();
  return true;
}

// Bounded per session, so that duplicates cannot be turned into a flood: four windows at once,
// refilled at one window per millisecond.
bool Engine::request_resend(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                            uint64_t now_ns) {
  if (mask == 0) return false;
  if (chunk.fanned_out_rounds != chunk.open_round())
    return false;                      // the first copy is still to leave
  if (chunk.is_stepped) return false;  // everybody had it, and it is here no more
  if (!may_resend(session, now_ns)) return false;
  if (!shard.egress.push_resend({&chunk, chunk.open_round() - 1, session.rank, mask})) {
    counters_.add(Counter::kResendsRefused);
    return false;
  }
  session.resend_budget_bytes -= int64_t{__builtin_popcountll(mask)} * shard.fragment_bytes;
  return true;
}

bool Engine::may_resend(Session& session, uint64_t now_ns) {
  const int64_t full = 4 * int64_t{session.credit_bytes};
  const uint64_t elapsed_ms = (now_ns - session.resend_refill_ns) / 1'000'000;
  if (elapsed_ms > 0) {
    session.resend_refill_ns = now_ns;
    const auto refill =
        static_cast<int64_t>(elapsed_ms < 4 ? elapsed_ms : 4) * int64_t{session.credit_bytes};
    session.resend_budget_bytes = std::min(full, session.resend_budget_bytes + refill);
  }
  if (session.resend_budget_bytes > 0) return true;
  counters_.add(Counter::kResendsRefused);
  return false;
}

}  // namespace pbox::pipeline
