// Handles the box's packets: validate, count, drop or store.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/path_probe.h"
#include "nic/wire/zeros.h"
#include "worker/protocol/delta_results.h"
#include "worker/protocol/exchange.h"
#include "worker/protocol/result_copy.h"

namespace pbox::worker {
namespace {

uint16_t dtype_scale(wire::Dtype dtype, uint16_t scale) {
  return static_cast<uint16_t>(static_cast<uint16_t>(dtype) | scale << 4);
}

bool is_by_rows(const ExchangeState& state, const ExchangeChunk& chunk,
                const wire::Header& header) {
  return (header.flags & wire::flag::kRows) != 0 && state.tensors[chunk.tensor].is_table();
}

// Returns whether a result names its fragments that are zero, instead of carrying their bytes.
bool names_zeros(const wire::Header& header) {
  return header.type() == wire::PacketType::kZeros;
}

// Returns whether the header of a result is right for the chunk that it names.
bool fits_layout(const ExchangeState& state, const ExchangeChunk& chunk,
                 const wire::Header& header) {
  const uint32_t fragment_bytes = chunk.fragment_bytes;
  wire::Dtype dtype = state.payload_dtype(chunk);
  if (const SlotRound* slot = state.slot(chunk)) {
    dtype = slot->shape.dtype;
    if (header.timestamp_us != slot->shape.digest || slot->bytes == 0) return false;
    if (!slot->shape.is_sent_to(state.session.rank)) return false;
  }
  const uint32_t fragments = wire::fragment_count(chunk.wire_bytes, fragment_bytes);
  // A result that lacks some ranks says how many contributed to it.
  const uint16_t contributors = header.contributors();
  const bool is_partial = (header.flags & wire::flag::kPartial) != 0;
  if (header.fragment >= fragments || is_partial != (contributors > 0) ||
      header.dtype_scale != dtype_scale(dtype, contributors)) {
    return false;
  }
  if (names_zeros(header)) return state.may_name_zeros(chunk);
  return is_by_rows(state, chunk, header) ||
         header.payload_bytes ==
             wire::fragment_length(chunk.wire_bytes, fragment_bytes, header.fragment);
}

// Returns the fragments that a result covers, as bits; 0 if this worker has no use for it.
uint64_t covered_fragments(const ExchangeState& state, const ExchangeChunk& chunk,
                           const wire::Parsed& parsed) {
  if (names_zeros(parsed.header)) return wire::read_zeros(parsed, chunk.full_mask);
  if (!is_by_rows(state, chunk, parsed.header)) return uint64_t{1} << parsed.header.fragment;
  wire::RowsView rows;
  // A worker that fetches the table does not have the rows that such a result leaves out.
  if (state.tensors[chunk.tensor].fetching && !chunk.restoring) return 0;
  return wire::parse_rows(state.row_layout(chunk), parsed, rows) ? rows.fragments : 0;
}

void copy_bytes(const ExchangeState& state, std::byte* destination, const std::byte* source,
                size_t bytes) {
  if (state.out_of_cache) {
    copy_past_cache(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

// If a rank's result is its own push, the box does not send it, and the rank copies it here.
void consume_slot(const ExchangeState& state, ExchangeTensor& tensor, const ExchangeChunk& chunk) {
  const SlotRound& slot = *tensor.slot;
  PBOX_DCHECK(slot.bytes == chunk.wire_bytes);
  if (slot.is_own_result()) {
    PBOX_DCHECK(tensor.input != nullptr);
    std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
    if (shadow != nullptr) std::memcpy(shadow, tensor.input, slot.bytes);
    if (tensor.output != nullptr && tensor.output != tensor.input) {
      copy_bytes(state, tensor.output, tensor.input, slot.bytes);
    }
  }
  tensor.consumed_slot = tensor.slot;
}

// Stores a fragment of a compressed tensor's result. The input stays unchanged until the chunk is
// complete, if it may have to be pushed to another box. A fetch has no input.
void store_blocks(const ExchangeTensor& tensor, const ExchangeChunk& chunk,
                  const wire::Parsed& parsed) {
  const uint32_t begin = parsed.header.fragment * chunk.fragment_bytes;
  const uint32_t bytes = parsed.header.payload_bytes;
  PBOX_DCHECK(begin + bytes <= chunk.wire_bytes && tensor.output != nullptr);
  std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
  if (shadow != nullptr && !tensor.fetching) {
    std::memcpy(shadow + chunk.shadow_offset + begin, parsed.payload, bytes);
    return;
  }
  const uint32_t first = wire::payload_elements(tensor.dtype, begin);
  const uint32_t count =
      std::min(wire::payload_elements(tensor.dtype, bytes), chunk.elements - first);
  auto* const output = reinterpret_cast<float*>(tensor.output + chunk.offset);
  tensor.encoded->decode(parsed.payload, count, output + first);
}

// Calls store(fragment, bit) for each of these fragments of a result, with zeros as payload.
template <typename Store>
void for_each_zero(const ExchangeChunk& chunk, const wire::Parsed& parsed, uint64_t fragments,
                   Store&& store) {
  static constexpr std::array<std::byte, limits::kFragmentBytesMax> kZeros{};
  wire::Parsed fragment = parsed;
  fragment.header.set_type(wire::PacketType::kResult);
  fragment.payload = kZeros.data();
  for (uint64_t left = fragments; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(__builtin_ctzll(left));
    const uint32_t bytes = wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, index);
    PBOX_DCHECK(bytes <= kZeros.size());
    fragment.header.fragment = static_cast<uint16_t>(index);
    fragment.header.payload_bytes = static_cast<uint16_t>(bytes);
    store(fragment, uint64_t{1} << index);
  }
}

// Remembers which ranks are late, and how long the PULL and this answer took.
void note_status(Lane& lane, ExchangeChunk& chunk, const wire::StatusPayload& status,
                 const wire::Header& header, uint64_t now_ns) {
  chunk.missing_workers = status.missing_workers;
  chunk.first_missing_rank = status.first_missing_rank;
  chunk.waited_ms = status.waited_ms;
  chunk.last_percent = status.last_percent;
  const uint32_t age_us = static_cast<uint32_t>(now_ns / 1000) - header.timestamp_us;
  chunk.asked_ns = now_ns - std::min(now_ns, uint64_t{age_us} * 1000);
  if (chunk.asked_ns >= chunk.pushed_ns) lane.note_round_trip(now_ns - chunk.asked_ns);
  if (status.missing_workers > 0) chunk.is_measurable = false;
}

}  // namespace

void Exchange::on_burst(uint32_t pipeline, std::span<const nic::RxPacket> packets,
                        uint64_t now_ns) {
  Lane& lane = this->lane(pipeline);
  state_.statistics.packets_received += packets.size();
  if (suspended_) {  // nothing of a session that is over is accepted
    state_.statistics.rejected_packets += packets.size();
    return;
  }
  for (const nic::RxPacket& packet : packets) on_packet(lane, packet, now_ns);
}

void Exchange::on_packet(Lane& lane, const nic::RxPacket& packet, uint64_t now_ns) {
  const SessionSpec& session = state_.session;
  wire::Parsed parsed;
  const bool sound = nic::parse(packet, parsed) == wire::Reject::kNone &&
                     parsed.header.spi == (lane.spi() | wire::kSpiToWorker) &&
                     lane.session_seal().open(session.tag, parsed, opened_.data()) &&
                     parsed.header.epoch == session.epoch &&
                     parsed.header.generation == session.generation;
  if (!sound) {
    ++state_.statistics.rejected_packets;
    return;
  }
  lane.note_packet(parsed.header, now_ns);
  if (parsed.header.type() == wire::PacketType::kGrant) return;
  Chunk* chunk = find_chunk(lane, parsed.header);
  if (chunk == nullptr) return;
  PBOX_DCHECK(&this->lane(chunk->pipeline) == &lane);
  switch (parsed.header.type()) {
    case wire::PacketType::kResult:
    case wire::PacketType::kZeros: on_result(lane, *chunk, parsed, now_ns); return;
    case wire::PacketType::kStatus: on_status(lane, *chunk, parsed, now_ns); return;
    default: ++state_.statistics.rejected_packets;
  }
}

// Returns the chunk that the packet is about; null if this worker has no use for the packet now.
Exchange::Chunk* Exchange::find_chunk(const Lane& lane, const wire::Header& header) {
  if (header.chunk >= state_.chunks.size() ||
      &lanes_[state_.chunks[header.chunk].pipeline] != &lane) {
    ++state_.statistics.rejected_packets;
    return nullptr;
  }
  Chunk& chunk = state_.chunks[header.chunk];
  if (!is_current(chunk, header)) {
    ++state_.statistics.stale_packets;
    return nullptr;
  }
  return &chunk;
}

void Exchange::on_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Tensor& tensor = state_.tensors[chunk.tensor];
  if (tensor.deltas && !accept_form(state_, lane, chunk, header, now_ns)) {
    ++state_.statistics.stale_packets;
    return;
  }
  if (!fits_layout(state_, chunk, header)) {
    ++state_.statistics.rejected_packets;
    return;
  }
  if (state_.reads_cache(chunk)) return on_cached_result(lane, chunk, parsed, now_ns);
  PBOX_DCHECK(chunk.in_flight);
  const uint64_t fragments = covered_fragments(state_, chunk, parsed);
  PBOX_DCHECK((fragments & ~chunk.full_mask) == 0);
  if (fragments == 0) {
    ++state_.statistics.rejected_packets;
    return;
  }
  if (state_.drops_rounds() && header.round != chunk.flight_round) {
    chunk.restart_result(header.round);
  }
  if ((fragments & ~chunk.result_mask) == 0) {
    ++state_.statistics.stale_packets;
    return;
  }
  // A result proves that the box has the whole push. Fragments that wait to be sent again are
  // dropped, because the result may overwrite their payload.
  if (chunk.result_mask == 0) lane.drop_unsent(header.chunk);
  if (!chunk.restoring) {  // this worker has the result that it restores
    store_fragment(tensor, chunk, parsed, fragments & ~chunk.result_mask);
    if (names_zeros(header)) chunk.zero_result_mask |= fragments & ~chunk.result_mask;
    const bool overwrites =
        tensor.deltas ? chunk.is_full
                      : tensor.shadow[0] == tensor.shadow[1] && !state_.stages_result(chunk);
    if (overwrites) chunk.in_shadow = false;
    note_version(chunk, header);
    const uint16_t contributors = header.contributors();
    if (chunk.result_mask == 0) chunk.contributors = UINT16_MAX;
    chunk.contributors =
        std::min<uint16_t>(chunk.contributors, contributors > 0 ? contributors : UINT16_MAX);
    state_.statistics.bytes_pulled += header.payload_bytes;
  }
  if (chunk.result_mask == 0) state_.trace.answer(header.chunk, now_ns);
  if (tensor.fetching) chunk.fetched_number = std::max(chunk.fetched_number, header.packet_number);
  chunk.result_mask |= fragments;
  if ((header.flags & wire::flag::kRetransmission) != 0) {
    chunk.is_measurable = false;
    if (!chunk.retransmitting) lane.note_loss(chunk, fragments, now_ns);
  }
  const bool was_sending = lane.cancel_sending(chunk);
  const bool was_waiting = chunk.waits_for_others;
  lane.end_wait(chunk, (header.flags & wire::flag::kRetransmission) != 0, now_ns);
  if (was_sending || was_waiting) lane.arm(chunk, now_ns);  // the other fragments are due now
  if (chunk.result_mask == chunk.full_mask) finish_chunk(lane, chunk, now_ns);
}

// Stores a fragment of a result, or, if the packet covers several, the fragments in the mask.
// Without a shadow it may overwrite the input. This is safe: the box has every fragment of every
// worker, or, if it does not wait for all workers, it answers this worker's push. In both cases the
// push will never be needed again.
//
// A device that reads inputs in place may still be reading one now. Either the push was received
// but its acknowledgement is late, and the box's device ignores these bytes. Or the push was sent
// again although the first copy had arrived. Then the box drops the fragment, whatever its bytes,
// because each fragment of a rank and round counts once, and this round is finished there. An
// earlier push cannot be the first copy of its fragment to arrive either: pushes of an earlier
// session ended with its transport.
void Exchange::store_fragment(Tensor& tensor, const Chunk& chunk, const wire::Parsed& parsed,
                              uint64_t fragments) {
  if (names_zeros(parsed.header)) {  // stored as if their bytes had arrived
    for_each_zero(chunk, parsed, fragments, [&](const wire::Parsed& fragment, uint64_t bit) {
      store_fragment(tensor, chunk, fragment, bit);
    });
    return;
  }
  if (state_.cache) {  // initial weights; later results are stored by on_cached_result()
    state_.cache->begin(state_.chunk_id(chunk), parsed.header.fragment, parsed.payload);
  }
  if (state_.stages_result(chunk)) {
    RowStage& stage = state_.stages[parsed.header.chunk];
    if (chunk.result_mask == 0) stage.clear();
    return stage.add(parsed, fragments);
  }
  if (tensor.deltas) return store_delta(tensor, chunk, parsed);
  if (tensor.encoded) return store_blocks(tensor, chunk, parsed);
  const size_t offset = chunk.offset + size_t{parsed.header.fragment} * chunk.fragment_bytes;
  const size_t bytes = parsed.header.payload_bytes;
  PBOX_DCHECK(offset + bytes <= chunk.offset + chunk.wire_bytes);
  PBOX_DCHECK(tensor.output != nullptr || tensor.slot != nullptr);
  std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
  if (tensor.output == nullptr) {  // only other ranks need this slot's result
    if (shadow != nullptr) copy_bytes(state_, shadow + offset, parsed.payload, bytes);
  } else if (shadow == nullptr || shadow == tensor.output) {
    copy_bytes(state_, tensor.output + offset, parsed.payload, bytes);
  } else if (tensor.is_staged(chunk)) {  // copied to the output when complete, while in cache
    std::memcpy(shadow + offset, parsed.payload, bytes);
  } else {
    copy_bytes(state_, shadow + offset, parsed.payload, bytes);
    copy_bytes(state_, tensor.output + offset, parsed.payload, bytes);
  }
}

void Exchange::finish_flight(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  // A cached read's push was measured when it was acknowledged.
  if (!state_.reads_cache(chunk)) lane.measure(chunk, now_ns);
  lane.end_flight(chunk);
  PBOX_DCHECK(!chunk.in_flight && !chunk.in_window);
}

void Exchange::on_announced(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  PBOX_DCHECK(!chunk.announced);
  lane.cancel_sending(chunk);
  // This worker has the result already, or does not need it.
  if (chunk.restoring || state_.session.ignores_results) return finish_chunk(lane, chunk, now_ns);
  finish_flight(lane, chunk, now_ns);
  chunk.announced = true;
  note_announced(state_.tensors[chunk.tensor]);
}

void Exchange::note_announced(Tensor& tensor) {
  PBOX_DCHECK(tensor.unannounced > 0);
  if (--tensor.unannounced > 0) return;
  for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
    const Chunk& chunk = state_.chunks[id];
    if (chunk.announced) lane(chunk.pipeline).queue(id, tensor.priority);
  }
}

void Exchange::finish_chunk(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  finish_flight(lane, chunk, now_ns);
  Tensor& tensor = state_.tensors[chunk.tensor];
  if (chunk.restoring) {
    chunk.restoring = false;
    state_.take_size(chunk);
    if (is_pending(chunk)) lane.queue(state_.chunk_id(chunk), tensor.priority);
    return;
  }
  PBOX_DCHECK(tensor.chunks_left > 0 && chunk.pipeline < lane_times_.size());
  lane_times_[chunk.pipeline].last_result_ns = now_ns;
  if (tensor.fetching) {
    chunk.fetched = true;
    if (tensor.deltas) read_weights(state_, tensor, chunk);
  } else {
    consume(tensor, chunk);
    state_.trace.complete(state_.chunk_id(chunk), now_ns);
  }
  tensor.contributors = std::min(tensor.contributors, chunk.contributors);
  // A result that a timer asked for too early may arrive without having been announced.
  if (!std::exchange(chunk.announced, false)) note_announced(tensor);
  if (--tensor.chunks_left > 0) return;
  if (!tensor.fetching) count_read(tensor);
  tensor.last_contributors = tensor.contributors;
  completed_.push_back(chunk.tensor);
  end(tensor, now_ns);
}

void Exchange::end(const Tensor& tensor, uint64_t now_ns) {
  PBOX_DCHECK(active_tensors_ > 0);
  PBOX_DCHECK(operations_of_round_ <= state_.tensors.size());
  if (!tensor.fetching && !tensor.is_votes) ++operations_ended_;
  if (--active_tensors_ > 0) return;
  if (busy_since_ns_ != 0) {
    const uint64_t since_ns = std::exchange(busy_since_ns_, 0);
    busy_ns_ += now_ns - since_ns;
    for (LaneTime& lane : lane_times_) {
      if (lane.last_result_ns > since_ns) lane.busy_ns += lane.last_result_ns - since_ns;
    }
  }
  if (operations_of_round_ == 0 || operations_ended_ % operations_of_round_ != 0) return;
  finished_.rounds = operations_ended_ / operations_of_round_;
  finished_.at_ns = now_ns;
  finished_.busy_ns = busy_ns_;
  finished_.lane_busy_ns.resize(lanes_.size());
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    finished_.lane_busy_ns[lane] = lane_times_[lane].busy_ns;
  }
}

void Exchange::consume(Tensor& tensor, Chunk& chunk) {
  if (tensor.slot != nullptr) consume_slot(state_, tensor, chunk);
  if (state_.reads_cache(chunk)) read_cache(tensor, chunk);
  tensor.note_read(chunk);
  PBOX_DCHECK(state_.drops_rounds() || chunk.flight_round == chunk.round);
  chunk.round = chunk.flight_round + 1;
  chunk.pushed = chunk.is_encoded = false;
  if (tensor.deltas) {
    read_weights(state_, tensor, chunk);
    chunk.in_shadow = true;
    return;
  }
  std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
  if (state_.stages_result(chunk)) {
    state_.stages[state_.chunk_id(chunk)].apply(
        state_.row_layout(chunk), tensor.output + chunk.offset,
        shadow == nullptr ? nullptr : shadow + chunk.offset);
    chunk.in_shadow = shadow != nullptr;
    return;
  }
  if (shadow == nullptr) return;
  chunk.in_shadow = true;
  if (tensor.encoded) {
    auto* const output = reinterpret_cast<float*>(tensor.output + chunk.offset);
    return tensor.encoded->decode(shadow + chunk.shadow_offset, chunk.elements, output);
  }
  if (!tensor.is_staged(chunk)) return;
  copy_bytes(state_, tensor.output + chunk.offset, shadow + chunk.offset, chunk.wire_bytes);
}

void Exchange::on_status(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns) {
  wire::StatusPayload status;
  if (wire::is_path_probe(parsed.header)) return;  // a late answer to a probe of the join
  if (parsed.header.payload_bytes == sizeof(wire::Challenge)) {
    wire::Challenge challenge;
    std::memcpy(&challenge, parsed.payload, sizeof(challenge));
    lane.prove_address(chunk, challenge, now_ns);
    return;
  }
  if (parsed.header.payload_bytes != sizeof(status)) {
    ++state_.statistics.rejected_packets;
    return;
  }
  PBOX_DCHECK(chunk.in_flight);
  std::memcpy(&status, parsed.payload, sizeof(status));
  const SlotRound* slot = state_.slot(chunk);
  if (slot != nullptr && !slot->shape.is_sent_to(state_.session.rank) &&
      wire::round_distance(status.finished_round, chunk.flight_round) > 0) {
    lane.drop_unsent(state_.chunk_id(chunk));
    lane.cancel_sending(chunk);
    // An announcement echoes no time; the answer to a PULL does.
    if (parsed.header.timestamp_us != 0) chunk.is_measurable = false;
    return finish_chunk(lane, chunk, now_ns);
  }
  // This worker never pushed a chunk that it fetches: the box has just not sent the result yet.
  const bool fetching = state_.tensors[chunk.tensor].fetching && !chunk.restoring;
  if (fetching && wire::round_distance(status.finished_round, chunk.flight_round) > 1) {
    // The round that was open when this worker joined has finished. Its result is now the newest.
    chunk.restart_result(status.finished_round - 1);
    lane.end_wait(chunk, true, now_ns);
    lane.pull(chunk, now_ns);
    return;
  }
  if (state_.session.delivery == wire::Delivery::kPull && !fetching && !chunk.announced &&
      wire::round_distance(status.finished_round, chunk.flight_round) > 0) {
    on_announced(lane, chunk, now_ns);
    return;
  }
  if (chunk.announced) {  // a late STATUS from before the announcement: the result can be pulled
    lane.arm(chunk, now_ns);
    return;
  }
  note_status(lane, chunk, status, parsed.header, now_ns);
  if (state_.reads_cache(chunk)) {
    return on_acknowledgement(lane, chunk, status.received_mask, now_ns);
  }
  const bool is_pushed = fetching || state_.awaits_full(chunk);
  const uint64_t missing = is_pushed ? 0 : chunk.push_mask & ~status.received_mask;
  // If the box holds a round until it has the whole round, a chunk must leave the window before its
  // result arrives, so that the other chunks can be pushed. The same applies if the upper box waits
  // for ranks of other racks, which may push those chunks first.
  const bool may_hold = state_.session.holds_rounds || state_.session.has_upper_box;
  const bool is_held = may_hold && !fetching && status.received_mask == chunk.full_mask;
  if (missing == 0 && (status.missing_workers > 0 || is_held)) {
    return lane.wait_for_others(chunk, now_ns);
  }
  lane.end_wait(chunk, false, now_ns);
  // The answer to a PULL from before the last push says nothing about that push.
  const bool is_old = static_cast<int32_t>(parsed.header.timestamp_us - chunk.sent_us) < 0;
  if (missing == 0 || chunk.result_mask != 0 || is_old) {
    if (chunk.to_send == 0) lane.arm(chunk, now_ns);
    return;
  }
  push_again(lane, chunk, missing, now_ns);
}

void Exchange::push_again(Lane& lane, Chunk& chunk, uint64_t fragments, uint64_t now_ns) {
  PBOX_DCHECK(fragments != 0 && (fragments & ~chunk.full_mask) == 0);
  chunk.probes = 1;  // the box has said what was lost, so there is no reason to back off
  chunk.is_measurable = false;
  // Fragments that this worker has not sent, or not to this box, were not lost.
  if (!chunk.is_portion && !chunk.retransmitting) lane.note_loss(chunk, fragments, now_ns);
  if (state_.names_zeros(chunk)) state_.find_zeros(chunk, fragments);
  lane.send(chunk, fragments);
  chunk.retransmitting = true;
}

}  // namespace pbox::worker
