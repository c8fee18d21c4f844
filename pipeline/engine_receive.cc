// How a burst is received: parse, authenticate, check, claim the fragment's bit, add.
#include <algorithm>
#include <cstring>
#include <utility>

#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/grace.h"
#include "pipeline/late_ranks.h"
#include "pipeline/result_form.h"
#include "pipeline/round_tracing.h"
#include "pipeline/value_guard.h"

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

// A worker whose packets are lost sends at most a window of them, and then only PULLs, ever less
// often. So the box never misses this many packet numbers in a row.
constexpr uint64_t kPacketNumberLeapMax = 1 << 20;

// Returns log2 of wire::dtype_bytes(). It needs no switch, because gradients have few types.
uint32_t element_shift(wire::Dtype dtype) {
  PBOX_DCHECK(static_cast<uint32_t>(dtype) < wire::kDtypeCount);
  static_assert(wire::kDtypeCount == 3 && wire::dtype_bytes(wire::Dtype::kF32) == 4 &&
                wire::dtype_bytes(wire::Dtype::kF16) == 2 &&
                wire::dtype_bytes(wire::Dtype::kBf16) == 2);
  return dtype == wire::Dtype::kF32 ? 2 : 1;
}

}  // namespace

void Engine::on_burst(std::span<const nic::RxPacket> packets, uint64_t now_ns) {
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  PBOX_DCHECK(aggregated_ == 0 && aggregated_bytes_ == 0);
  if (packets.empty()) return;
  context_.now_ns = now_ns;
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
    if (in_cache != fetch_choice_.in_cache()) clock_.discard_turn();
    fetch_choice_.note(cycle_count() - start_cycles, aggregated_bytes_);
  }
  flight_.keep_state();
  context_.counters.add(Counter::kRxPackets, packets.size());
  context_.counters.add(Counter::kAggregated, std::exchange(aggregated_, 0));
  context_.counters.add(Counter::kAggregatedBytes, std::exchange(aggregated_bytes_, 0));
}

template <typename Ahead, bool kTraces>
void Engine::on_packets(std::span<const nic::RxPacket> packets, uint64_t now_ns) {
  static constexpr nic::RxPacket kNone;
  for (const nic::RxPacket& packet : packets.first(std::min(packets.size(), Ahead::kPackets))) {
    fetch<Ahead>(packet);
    fetch_rest<Ahead>(packet);
  }
  uint64_t bytes = 0;
  for (size_t index = 0; index < packets.size(); ++index) {
    const bool has_ahead = index + Ahead::kPackets < packets.size();
    const nic::RxPacket& ahead = has_ahead ? packets[index + Ahead::kPackets] : kNone;
    fetch<Ahead>(ahead);
    if constexpr (Ahead::kInPieces) {
      following_ = index + 1 < packets.size() ? &packets[index + 1] : &kNone;
    }
    bytes += packets[index].bytes;
    FlightRecord& record = flight_.add_packet(packets[index], now_ns);
    const uint64_t aggregated = aggregated_;
    if constexpr (kTraces) {
      const TracedPush traced = before_push(context_.sessions, packets[index]);
      on_packet(packets[index], now_ns);
      after_push(traced);
    } else {
      on_packet(packets[index], now_ns);
    }
    fetch_rest<Ahead>(ahead);
    PBOX_DCHECK(aggregated_ - aggregated <= 1);
    if (aggregated_ != aggregated) [[likely]] {
      record.verdict = Verdict::kAggregated;
    } else {
      flight_.note_verdict(record);
    }
  }
  following_ = nullptr;
  context_.counters.add(Counter::kRxBytes, bytes);
}

// Functions that are not inlined get a copy, so that `parsed` itself can stay in registers.
void Engine::on_packet(const nic::RxPacket& packet, uint64_t now_ns) {
  wire::Parsed parsed;
  const wire::Reject reject = nic::parse(packet, parsed);
  if (reject != wire::Reject::kNone) {
    context_.counters.add(counter_of(reject));
    return;
  }
  PBOX_DCHECK(parsed.header.payload_bytes + limits::kPacketOverheadBytes == packet.bytes);
  SessionEntry* entry = authenticate(parsed);
  if (entry == nullptr) return;
  // A session from before a crash may have had the same spi. Its packets are of another epoch, and
  // must not change the address.
  if (parsed.header.epoch == entry->shard->epoch) {
    note_sender(*entry->session, packet, parsed.header, now_ns);
  }
  clock_.mark(Phase::kAuthenticate);
  switch (parsed.header.type()) {
    case wire::PacketType::kPush:
    case wire::PacketType::kState:
      if (entry->shard->is_relaxed()) [[unlikely]] {
        const wire::Parsed copy = parsed;
        if (on_sync_push(*entry->shard, *entry->session, copy)) return;
      }
      on_push(*entry->shard, *entry->session, parsed, now_ns);
      return;
    case wire::PacketType::kZeros:
      if (Chunk* chunk = check_round(*entry->shard, parsed.header)) {
        if (waits_for_copy(*chunk)) {
          context_.counters.add(Counter::kRejectRound);
          return;
        }
        if (gives_deltas(*chunk) && parsed.header.round != chunk->open_round()) {
          const uint64_t mask = asked_by_push(*entry->shard, *chunk, parsed.header);
          return on_push_of_finished(*entry->shard, *entry->session, *chunk, mask, now_ns);
        }
        on_formatted_push(*entry->shard, *entry->session, *chunk, wire::Parsed(parsed), now_ns);
      }
      return;
    case wire::PacketType::kPull:
      on_pull(*entry->shard, *entry->session, packet, wire::Parsed(parsed), now_ns);
      return;
    default: context_.counters.add(Counter::kRejectType);
  }
}

SessionEntry* Engine::authenticate(wire::Parsed& parsed) {
  const uint32_t spi = parsed.header.spi;
  SessionEntry& entry = context_.sessions.at(spi);
  // Every entry's spi names this pipeline, so a packet for another pipeline fails here too.
  if (entry.session == nullptr || entry.spi != spi) [[unlikely]] {
    const bool is_lost = spi_pipeline(spi) != pipeline_index_;
    context_.counters.add(is_lost ? Counter::kRejectQueue : Counter::kRejectSession);
    return nullptr;
  }
  if (!entry.session->seal.open(context_.tag, parsed, opened_.data())) {
    context_.counters.add(Counter::kRejectTag);
    return nullptr;
  }
  PBOX_DCHECK(entry.session->present && entry.session->spi == spi);
  PBOX_DCHECK(&entry.shard->sessions()[entry.session->rank] == entry.session);
  return &entry;
}

// Notes the worker's address, which is that of its newest authentic packet. An old or replayed
// packet does not change it. Neither does a packet whose number is far ahead, because after it no
// packet of the worker itself would be newer. A new address may have to be proved (on_pull), unless
// it is a lane of shared memory, which only this worker can send on.
void Engine::note_sender(Session& session, const nic::RxPacket& packet, const wire::Header& header,
                         uint64_t now_ns) {
  session.last_packet_ns.set(now_ns);
  const uint64_t ahead =
      header.packet_number - session.newest_packet_number;  // huge if it is older
  const bool is_newer = ahead != 0 && ahead <= kPacketNumberLeapMax;
  if (session.reachable && !is_newer) return;
  if (session.known_host && !session.is_at(packet.from) && !nic::is_lane(packet.from) &&
      (session.is_settled || !nic::same_host(packet.from, *session.known_host))) [[unlikely]] {
    return;
  }
  if (is_newer) session.newest_packet_number = header.packet_number;
  session.move_to(packet.from, packet.to);
  if (header.type() != wire::PacketType::kPull) session.is_settled = true;
}

void Engine::on_push(JobShard& shard, Session& session, const wire::Parsed& parsed,
                     uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = check_round(shard, header);
  if (chunk == nullptr) return;
  if (gives_deltas(*chunk) && header.round != chunk->open_round()) [[unlikely]] {
    const uint64_t mask = asked_by_push(shard, *chunk, header);
    return on_push_of_finished(shard, session, *chunk, mask, now_ns);
  }
  if (gives_deltas(*chunk) && chunk->copy_rank != kNoRank &&
      header.type() == wire::PacketType::kPush) [[unlikely]] {
    return count_duplicate(context_, session);  // only STATE counts, and the form may differ
  }
  if ((shard.is_collective || shard.has_tables) &&
      on_formatted_push(shard, session, *chunk, wire::Parsed(parsed), now_ns)) [[unlikely]] {
    return;
  }
  if (!check_fragment(*chunk, header)) return;
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (header.round != chunk->open_round()) {  // finished: the worker may have missed the result
    return on_push_of_finished(shard, session, *chunk, bit, now_ns);
  }
  if (!claim(shard, session, *chunk, header, bit)) return;
  add_fragment(shard, session, *chunk, parsed);
  finish_push(shard, session, *chunk);
}

// Takes pushes of slots and of tables, and packets that name zeros. Returns false, and has no
// effect, if the push is a plain fragment.
bool Engine::on_formatted_push(JobShard& shard, Session& session, Chunk& chunk,
                               const wire::Parsed& parsed, uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  const bool is_finished = header.round != chunk.open_round();
  wire::RowsView rows;
  uint64_t fragments = 0;
  const bool names_zeros = header.type() == wire::PacketType::kZeros;
  if (names_zeros) {
    fragments = zeros_.read(shard, chunk, parsed);
    if (fragments == 0) return true;
    flight_.note_mask(fragments);
  } else if (shard.is_collective) {
    if (is_finished) fragments = ShapedPushes::asked_mask(chunk, header);
  } else {
    const bool is_by_rows = chunk.table != nullptr && header.type() == wire::PacketType::kPush;
    if (!is_by_rows || shard.receives_weights(chunk)) return false;
    if (!tables_.read(chunk, parsed, rows)) return true;
    fragments = rows.fragments;
  }
  if (is_finished) {
    on_push_of_finished(shard, session, chunk, fragments, now_ns);
    return true;
  }
  if (names_zeros) {  // each counts as if it had arrived in a packet of its own
    const uint64_t missing = fragments & ~chunk.claimed[session.rank];
    if (!claim(shard, session, chunk, header, missing != 0 ? missing : fragments)) return true;
    add_weight(chunk, header, missing);
    zeros_.add(shard, session, chunk, missing);
  } else if (shard.is_collective) {
    if (!shaped_.take(shard, session, chunk, parsed)) return true;
  } else {
    if (!claim(shard, session, chunk, header, fragments)) return true;
    tables_.add(shard, session, chunk, parsed, rows);
    chunk.claimed_any |= fragments;
    session.bytes_received.add(header.payload_bytes);
    session.fragments_received.add(1);
  }
  ++aggregated_;
  aggregated_bytes_ += header.payload_bytes;
  clock_.mark(Phase::kAdd);
  finish_push(shard, session, chunk);
  return true;
}

void Engine::on_push_of_finished(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                                 uint64_t now_ns) {
  PBOX_DCHECK(chunk.deltas.is_result_full || (mask & ~chunk.full_mask) == 0);
  count_duplicate(context_, session);
  mask &= result_mask(shard, chunk, session.rank, chunk.deltas.is_result_full);
  if (shard.delivery == wire::Delivery::kBroadcast) {
    request_resend(shard, session, chunk, {mask, chunk.deltas.is_result_full}, now_ns);
  }
}

// Sets the bits of the fragments, so that they count once. Returns false, and counts the packet, if
// it must not be added.
bool Engine::claim(const JobShard& shard, Session& session, Chunk& chunk,
                   const wire::Header& header, uint64_t fragments) {
  PBOX_DCHECK(header.round == chunk.open_round() && header.fragment < chunk.fragment_count);
  PBOX_DCHECK(session.rank < shard.worker_count());
  PBOX_DCHECK((chunk.claimed[session.rank] & ~chunk.full_mask) == 0);
  PBOX_DCHECK(chunk.complete_workers <= shard.present_count());
  PBOX_DCHECK((fragments & ~chunk.full_mask) == 0);
  if ((chunk.claimed[session.rank] & fragments) != 0) {
    count_duplicate(context_, session);
    return false;
  }
  // The result of a round that some rank has consumed is copied from that rank (STATE), never
  // summed again. Any other round is summed.
  if ((header.type() == wire::PacketType::kState) != (chunk.copy_rank == session.rank)) {
    context_.counters.add(Counter::kRejectType);
    return false;
  }
  // A rank that follows the protocol holds the result of the round before when it pushes the last
  // fragment of this one. A rank that violates it must neither grow the egress queue nor change a
  // result that has not left yet.
  if ((chunk.claimed[session.rank] | fragments) == chunk.full_mask &&
      chunk.complete_workers + 1u == shard.present_count() &&
      chunk.fanned_out_rounds != chunk.open_round()) {
    context_.counters.add(Counter::kRejectRound);
    return false;
  }
  if (chunk.claimed_any == 0) [[unlikely]]
    flight_.record_chunk(shard, chunk, true);
  chunk.claimed[session.rank] |= fragments;
  return true;
}

// Adds a fragment whose bit was claimed just now.
void Engine::add_fragment(JobShard& shard, Session& session, Chunk& chunk,
                          const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const uint64_t bit = uint64_t{1} << header.fragment;
  PBOX_DCHECK((chunk.claimed[session.rank] & bit) != 0);
  const bool are_sound = accumulate(shard, session, chunk, parsed);
  // STATE is a result: an unsound value in it is not this rank's doing.
  if (!are_sound && header.type() == wire::PacketType::kPush) [[unlikely]]
    note_unsound(shard, session, chunk, chunk.open_round(), context_.now_ns);
  add_weight(chunk, header, bit);
  chunk.claimed_any |= bit;
  if (chunk.copy_rank != kNoRank && shard.partial) [[unlikely]] {
    chunk.contributors[chunk.open_round() & 1][header.fragment] = static_cast<uint16_t>(
        header.contributors() != 0 ? header.contributors() : shard.worker_count());
  }
  ++aggregated_;
  aggregated_bytes_ += header.payload_bytes;
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  clock_.mark(Phase::kAdd);
}

// Stores or adds the payload, according to the kind of the round. Returns false if it has found an
// unsound value. Weights have no bound: only infinities and NaNs are unsound in them. Pushes that
// are kept until the round ends are examined only then (add_in_order).
bool Engine::accumulate(JobShard& shard, Session& session, Chunk& chunk,
                        const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const uint64_t bit = uint64_t{1} << header.fragment;
  const bool is_block = wire::is_in_blocks(chunk.dtype);
  const uint32_t shift = is_block ? 0 : element_shift(chunk.dtype);
  size_t offset = header.fragment * chunk.fragment_bytes >> shift;
  size_t elements = header.payload_bytes >> shift;
  if (is_block) [[unlikely]] {
    offset = shard.fragment_offset_elements(chunk, header.fragment);
    elements = shard.fragment_elements(chunk, header.fragment);
  }
  const auto type = static_cast<size_t>(chunk.dtype);
  PBOX_DCHECK(offset + elements <= chunk.elements);
  if (shard.receives_weights(chunk)) {
    PBOX_DCHECK(chunk.weights != nullptr);
    // Only rank 0's initial weights count; the others push so that the round is a barrier. Where
    // a worker gives weights back, `copy_rank`'s count. A snapshot's weights are already loaded.
    if ((session.rank == 0 && !chunk.is_restored) || chunk.copy_rank != kNoRank) {
      return kernels_.store[type](chunk.weights + offset, parsed.payload, elements, FLT_MAX);
    }
    return true;
  }
  PBOX_DCHECK(chunk.accumulator[chunk.open_round() & 1] != nullptr);
  float* accumulator = chunk.accumulator[chunk.open_round() & 1] + offset;
  if (chunk.copy_rank != kNoRank) [[unlikely]] {  // a result, which the guard has let pass
    if (is_block) {                               // kept as it arrived
      std::memcpy(chunk.result[0] + size_t{header.fragment} * chunk.fragment_bytes, parsed.payload,
                  header.payload_bytes);
      return true;
    }
    return kernels_.store[type](accumulator, parsed.payload, elements, FLT_MAX);
  }
  bool are_sound = true;
  if (shard.keeps_pushes(chunk)) [[unlikely]] {
    PBOX_DCHECK(chunk.pushed != nullptr);
    std::memcpy(shard.pushed(chunk, session.rank, header.fragment), parsed.payload,
                header.payload_bytes);
  } else {
    const bool is_first = (chunk.claimed_any & bit) == 0;
    const auto sum = gradient_kernel(kernels_, shard.guard, chunk.dtype, is_first);
    are_sound = following_ == nullptr || is_block
                    ? sum(accumulator, parsed.payload, elements, shard.value_limit)
                    : sum_in_pieces(sum, accumulator, {parsed.payload, header.payload_bytes}, shift,
                                    shard.value_limit, *following_);
  }
  if (GradientSquares::measures(header.round)) [[unlikely]] {
    // After the sum, because the sum has brought the payload into the cache.
    measure_gradient(kernels_, shard, session, chunk, wire::Parsed(parsed));
  }
  return are_sound;
}

// Model `drop`: adds fragments of a closed round to the sum of the open one.
void Engine::add_late(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                      const wire::RowsView* rows) {
  PBOX_DCHECK(chunk.copy_rank == kNoRank && !shard.receives_weights(chunk));
  PBOX_DCHECK(wire::round_distance(parsed.header.round, chunk.open_round()) < 0);
  if (rows != nullptr) {
    tables_.add(shard, session, chunk, parsed, *rows);
    chunk.claimed_any |= rows->fragments;
  } else {
    if (!accumulate(shard, session, chunk, parsed)) [[unlikely]]
      note_unsound(shard, session, chunk, parsed.header.round, context_.now_ns);
    const uint64_t bit = uint64_t{1} << parsed.header.fragment;
    add_weight(chunk, parsed.header, bit);
    chunk.claimed_any |= bit;
  }
  ++aggregated_;
  aggregated_bytes_ += parsed.header.payload_bytes;
  clock_.mark(Phase::kAdd);
}

// Ends the round if the rank has pushed all of the chunk and was the last one missing.
void Engine::finish_push(JobShard& shard, Session& session, Chunk& chunk) {
  if (chunk.claimed[session.rank] != chunk.full_mask) return;
  PBOX_DCHECK(chunk.claimed_any == chunk.full_mask || chunk.copy_rank != kNoRank ||
              shard.is_collective);
  if (++chunk.complete_workers < shard.workers_needed(chunk)) {
    shard.stragglers.arrived(shard.index_of(chunk), context_.now_ns);
    return;
  }
  if (shard.grace.is_reserved()) [[unlikely]] {
    shard.grace.note_arrival(shard.index_of(chunk), context_.now_ns);
    if (waits_for_more(shard, chunk, context_.now_ns)) {
      shard.stragglers.arrived(shard.index_of(chunk), context_.now_ns);
      return;
    }
  }
  PBOX_DCHECK(chunk.complete_workers <= shard.present_count());
  if (shard.has_rejected()) [[unlikely]]
    return;
  note_last(shard, session, chunk, context_.now_ns);
  end_round(shard, chunk);
  clock_.mark(Phase::kFinish);
}

}  // namespace pbox::pipeline
