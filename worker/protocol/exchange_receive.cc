#include <algorithm>
#include <cstring>
#include <utility>

#include "nic/wire/chunk_layout.h"
#include "worker/protocol/exchange.h"
#include "worker/protocol/result_copy.h"

namespace pbox::worker {
namespace {

uint16_t dtype_scale(wire::Dtype dtype, uint16_t scale) {
  return static_cast<uint16_t>(static_cast<uint16_t>(dtype) | scale << 4);
}

}  // namespace

void Exchange::on_burst(uint32_t pipeline, std::span<const nic::RxPacket> packets,
                        uint64_t now_ns) {
  Lane& lane = lanes_[pipeline];
  statistics_.packets_received += packets.size();
  if (suspended_) {  // the promise: nothing of a session that is over is accepted
    statistics_.rejected_packets += packets.size();
    return;
  }
  for (const nic::RxPacket& packet : packets) on_packet(lane, packet, now_ns);
}

void Exchange::on_packet(Lane& lane, const nic::RxPacket& packet, uint64_t now_ns) {
  wire::Parsed parsed;
  const bool sound = wire::parse(packet.data, packet.bytes, parsed) == wire::Reject::kNone &&
                     parsed.header.spi == (lane.spi | wire::kSpiToWorker) &&
                     wire::verify_tag(session_.tag, parsed) &&
                     parsed.header.epoch == session_.epoch &&
                     parsed.header.generation == session_.generation;
  if (!sound) {
    ++statistics_.rejected_packets;
    return;
  }
  lane.last_heard_ns = now_ns;
  set_credit(lane, parsed.header);
  if (parsed.header.type() == wire::PacketType::kGrant) return;
  Chunk* chunk = check(lane, parsed.header);
  if (chunk == nullptr) return;
  switch (parsed.header.type()) {
    case wire::PacketType::kResult: on_result(lane, *chunk, parsed, now_ns); return;
    case wire::PacketType::kStatus: on_status(lane, *chunk, parsed, now_ns); return;
    default: ++statistics_.rejected_packets;
  }
}

void Exchange::set_credit(Lane& lane, const wire::Header& header) {
  const uint64_t credit = uint64_t{header.credit} * limits::kCreditUnitBytes;
  if (credit > 0) lane.window_bytes = std::min<uint64_t>(credit, session_.window_bytes);
}

// The chunk that the packet is about, if this worker has use for it now.
Exchange::Chunk* Exchange::check(Lane& lane, const wire::Header& header) {
  if (header.chunk >= chunks_.size() || &lanes_[chunks_[header.chunk].pipeline] != &lane) {
    ++statistics_.rejected_packets;
    return nullptr;
  }
  Chunk& chunk = chunks_[header.chunk];
  if (!is_current(chunk, header)) {
    ++statistics_.stale_packets;
    return nullptr;
  }
  return &chunk;
}

void Exchange::on_result(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Tensor& tensor = tensors_[chunk.tensor];
  const uint32_t fragments = wire::fragment_count(chunk.wire_bytes, session_.fragment_bytes);
  // A result that lacks somebody says how many are in it.
  const uint16_t contributors = header.contributors();
  const bool is_partial = (header.flags & wire::flag::kPartial) != 0;
  if (header.fragment >= fragments || is_partial != (contributors > 0) ||
      header.dtype_scale != dtype_scale(tensor.dtype, contributors) ||
      header.payload_bytes !=
          wire::fragment_length(chunk.wire_bytes, session_.fragment_bytes, header.fragment)) {
    ++statistics_.rejected_packets;
    return;
  }
  if (reads_cache(chunk)) return on_cached_result(lane, chunk, parsed, now_ns);
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (drops_rounds() && header.round != chunk.flight_round) begin_anew(chunk, header.round);
  if ((chunk.result_mask & bit) != 0) {
    ++statistics_.stale_packets;
    return;
  }
  // A result shows that the box has all of ours; what was to be pushed again may be overwritten.
  if (chunk.result_mask == 0) drop_unsent(lane, header.chunk);
  if (!chunk.giving) {  // one that was given back is here already
    place(tensor, chunk, parsed);
    if (tensor.shadow[0] == tensor.shadow[1]) chunk.in_shadow = false;
    note_version(chunk, header);
    if (chunk.result_mask == 0) chunk.contributors = UINT16_MAX;
    chunk.contributors =
        std::min<uint16_t>(chunk.contributors, is_partial ? contributors : UINT16_MAX);
    statistics_.bytes_pulled += header.payload_bytes;
  }
  if (chunk.result_mask == 0) trace_.answer(header.chunk, now_ns);
  chunk.result_mask |= bit;
  if ((header.flags & wire::flag::kRetransmission) != 0) chunk.measures = false;
  const bool was_sending = send_no_more(lane, chunk);
  const bool was_waiting = std::exchange(chunk.waits_for_others, false);
  if (was_sending || was_waiting) arm(lane, chunk, now_ns);  // the rest is due
  if (chunk.result_mask == chunk.full_mask) finish_chunk(lane, chunk, now_ns);
}

// Without a shadow, in place is safe because a result exists only when the box has every fragment
// of every worker, or, where it does not wait for all, answers this one's push: the box will not be
// given that again, the input under it is needed no more.
//
// A device that reads inputs where they lie may still read one now: of a push whose acknowledgement
// is late, whose bytes the box's device has and leaves out, or of one that was pushed again though
// the first had arrived. Whatever bytes that brings, the box drops it: each fragment of a rank and
// round counts once, and this round is done there. Nor can a push of before be the first of its
// fragment to arrive: those of an earlier session ended with its transport.
void Exchange::place(const Tensor& tensor, const Chunk& chunk, const wire::Parsed& parsed) {
  if (cache_) {  // initial weights: nothing of this worker's own but them
    cache_->begin(chunk_id(chunk), parsed.header.fragment, parsed.payload);
  }
  const size_t offset = chunk.offset + size_t{parsed.header.fragment} * session_.fragment_bytes;
  const size_t bytes = parsed.header.payload_bytes;
  std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
  if (shadow == nullptr) {
    copy(tensor.output + offset, parsed.payload, bytes);
  } else if (is_staged(tensor, chunk)) {  // copied out when it is whole, while still in cache
    std::memcpy(shadow + offset, parsed.payload, bytes);
  } else {
    copy(shadow + offset, parsed.payload, bytes);
    copy(tensor.output + offset, parsed.payload, bytes);
  }
}

// The input has to outlast the first fragments of the result, which go in its place.
bool Exchange::is_staged(const Tensor& tensor, const Chunk& chunk) const {
  return tensor.input == tensor.output && chunk.full_mask > 1;
}

void Exchange::copy(std::byte* destination, const std::byte* source, size_t bytes) const {
  if (out_of_cache_) {
    copy_past_cache(destination, source, bytes);
  } else {
    std::memcpy(destination, source, bytes);
  }
}

// What a chunk's way to the box and back says of the path. One that was asked for too early says it
// as well, or a path that becomes slower would be asked for everything, and never known again.
void Exchange::measure(Lane& lane, const Chunk& chunk, uint64_t now_ns) {
  if (chunk.measures) lane.rtt.sample(now_ns - chunk.pushed_ns);
  lane.window.arrive(chunk.mark, chunk.wire_bytes, chunk.measures, now_ns);
}

// Out of flight: answered, as far as it was asked for.
void Exchange::land(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  if (!reads_cache(chunk)) measure(lane, chunk, now_ns);  // else with its acknowledgement
  chunk.in_flight = false;
  leave_window(lane, chunk);
  auto& in_flight = lane.in_flight;
  const auto found = std::find(in_flight.begin(), in_flight.end(), chunk_id(chunk));
  *found = in_flight.back();
  in_flight.pop_back();
  if (in_flight.empty()) lane.deadline_ns = UINT64_MAX;
  drop_unsent(lane, chunk_id(chunk));
  note_overtaken(lane, chunk);
}

void Exchange::on_announced(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  send_no_more(lane, chunk);
  // Its result is here already, or not wanted.
  if (chunk.giving || session_.results_stay) return finish_chunk(lane, chunk, now_ns);
  land(lane, chunk, now_ns);
  chunk.announced = true;
  note_announced(tensors_[chunk.tensor]);
}

void Exchange::note_announced(Tensor& tensor) {
  if (--tensor.unannounced > 0) return;
  for (uint32_t id = tensor.first_chunk; id < tensor.first_chunk + tensor.chunk_count; ++id) {
    if (chunks_[id].announced) lanes_[chunks_[id].pipeline].queue.push(id, tensor.priority);
  }
}

void Exchange::finish_chunk(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  land(lane, chunk, now_ns);
  Tensor& tensor = tensors_[chunk.tensor];
  if (chunk.giving) {
    chunk.giving = false;
    if (is_pending(chunk)) lane.queue.push(chunk_id(chunk), tensor.priority);
    return;
  }
  if (tensor.fetching) {
    chunk.fetched = true;
  } else {
    consume(tensor, chunk);
    trace_.complete(chunk_id(chunk), now_ns);
  }
  tensor.contributors = std::min(tensor.contributors, chunk.contributors);
  // One that was asked for too early, by a timer, may come without having been announced.
  if (!std::exchange(chunk.announced, false)) note_announced(tensor);
  if (--tensor.chunks_left > 0) return;
  if (!tensor.fetching) count_read(tensor);
  tensor.last_contributors = tensor.contributors;
  completed_.push_back(chunk.tensor);
  end(tensor, now_ns);
}

void Exchange::end(const Tensor& tensor, uint64_t now_ns) {
  if (!tensor.fetching) ++operations_ended_;
  if (--tensors_under_way_ > 0) return;
  if (busy_since_ns_ != 0) busy_ns_ += now_ns - std::exchange(busy_since_ns_, 0);
  if (operations_ended_ % tensors_.size() != 0) return;
  finished_ = {operations_ended_ / tensors_.size(), now_ns, busy_ns_};
}

void Exchange::consume(Tensor& tensor, Chunk& chunk) {
  if (reads_cache(chunk)) read_cache(tensor, chunk);
  note_read(tensor, chunk);
  chunk.round = chunk.flight_round + 1;
  chunk.pushed = false;
  const std::byte* shadow = tensor.shadow[chunk.flight_round & 1];
  if (shadow == nullptr) return;
  chunk.in_shadow = true;
  if (!is_staged(tensor, chunk)) return;
  copy(tensor.output + chunk.offset, shadow + chunk.offset, chunk.wire_bytes);
}

void Exchange::leave_path(Lane& lane, Chunk& chunk) {
  if (chunk.on_path) lane.path_bytes -= chunk.wire_bytes;
  chunk.on_path = false;
}

void Exchange::leave_window(Lane& lane, Chunk& chunk) {
  leave_path(lane, chunk);
  if (chunk.in_window) lane.outstanding_bytes -= chunk.wire_bytes;
  chunk.in_window = false;
}

// Packets made but not taken by the port point into buffers that are the caller's again.
void Exchange::drop_unsent(Lane& lane, uint32_t chunk_id) {
  size_t kept = lane.outgoing_begin;
  for (size_t index = lane.outgoing_begin; index < lane.outgoing_end; ++index) {
    if (lane.outgoing[index].header.chunk == chunk_id) continue;
    if (kept != index) {
      lane.outgoing[kept] = lane.outgoing[index];
      if (lane.outgoing[kept].header.type() == wire::PacketType::kPull) {
        lane.outgoing_pull[kept] = lane.outgoing_pull[index];
        lane.outgoing[kept].payload = reinterpret_cast<const std::byte*>(&lane.outgoing_pull[kept]);
      }
    }
    ++kept;
  }
  lane.outgoing_end = kept;
}

void Exchange::on_status(Lane& lane, Chunk& chunk, const wire::Parsed& parsed, uint64_t now_ns) {
  wire::StatusPayload status;
  if (parsed.header.payload_bytes != sizeof(status)) {
    ++statistics_.rejected_packets;
    return;
  }
  std::memcpy(&status, parsed.payload, sizeof(status));
  // What is fetched was never pushed from here: the box has yet to find time for the result.
  const bool fetching = tensors_[chunk.tensor].fetching && !chunk.giving;
  if (fetching && wire::round_distance(status.finished_round, chunk.flight_round) > 1) {
    // The round that was open when this worker came is done: its result is the newest now.
    chunk.flight_round = status.finished_round - 1;
    chunk.result_mask = 0;
    lane.to_probe.push_back(chunk_id(chunk));
    arm(lane, chunk, now_ns);
    return;
  }
  if (session_.delivery == wire::Delivery::kPull && !fetching && !chunk.announced &&
      wire::round_distance(status.finished_round, chunk.flight_round) > 0) {
    on_announced(lane, chunk, now_ns);
    return;
  }
  if (chunk.announced) {  // said before that, and late: the result is there
    arm(lane, chunk, now_ns);
    return;
  }
  chunk.missing_workers = status.missing_workers;
  chunk.first_missing_rank = status.first_missing_rank;
  chunk.waited_ms = status.waited_ms;
  chunk.last_percent = status.last_percent;
  const uint32_t age_us = static_cast<uint32_t>(now_ns / 1000) - parsed.header.timestamp_us;
  chunk.asked_ns = now_ns - std::min(now_ns, uint64_t{age_us} * 1000);
  if (chunk.asked_ns >= chunk.pushed_ns) lane.rtt.at_least(now_ns - chunk.asked_ns);
  if (status.missing_workers > 0) chunk.measures = false;
  if (reads_cache(chunk)) return on_acknowledgement(lane, chunk, status.received_mask, now_ns);
  const uint64_t missing = fetching ? 0 : chunk.full_mask & ~status.received_mask;
  chunk.waits_for_others = missing == 0 && status.missing_workers > 0;
  if (chunk.waits_for_others) leave_window(lane, chunk);
  if (missing == 0 || chunk.result_mask != 0) {
    arm(lane, chunk, now_ns);
    return;
  }
  push_again(lane, chunk, missing);
}

void Exchange::push_again(Lane& lane, Chunk& chunk, uint64_t fragments) {
  chunk.probes = 1;  // what was lost is known: no reason to slow down
  chunk.measures = false;
  send(lane, chunk, fragments);
  chunk.retransmitting = true;
}

}  // namespace pbox::worker
