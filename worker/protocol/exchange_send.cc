#include <algorithm>

#include "base/numa_arena.h"
#include "nic/wire/chunk_layout.h"
#include "worker/protocol/exchange.h"

namespace pbox::worker {
namespace {

// The kernel copies a payload out of memory line after line, waiting for each; asked for ahead,
// many lines are under way at once. Inlined by force: GCC drops calls of what only prefetches.
[[gnu::always_inline]] inline void fetch_payload(const nic::TxPacket& packet) {
  constexpr int kForReading = 0;
  constexpr int kSecondLevelCache = 2;
  for (size_t at = 0; at < packet.header.payload_bytes; at += kCacheLineBytes) {
    __builtin_prefetch(packet.payload + at, kForReading, kSecondLevelCache);
  }
}

}  // namespace

std::span<const nic::TxPacket> Exchange::to_send(uint32_t pipeline, uint64_t now_ns) {
  Lane& lane = lanes_[pipeline];
  if (tensors_under_way_ > 0 && busy_since_ns_ == 0) busy_since_ns_ = now_ns;
  if (lane.outgoing_begin == lane.outgoing_end) {
    lane.outgoing_begin = lane.outgoing_end = 0;
    fill_probes(lane, now_ns);
    fill_pushes(lane, now_ns);
  }
  return {lane.outgoing.data() + lane.outgoing_begin, lane.outgoing_end - lane.outgoing_begin};
}

void Exchange::sent(uint32_t pipeline, size_t count, uint64_t) {
  lanes_[pipeline].outgoing_begin += count;
  statistics_.packets_sent += count;
}

int32_t Exchange::priority(const Chunk& chunk) const {
  return chunk.giving ? kGivePriority : tensors_[chunk.tensor].priority;
}

// One of a higher priority than those at hand goes before what they have still to send.
void Exchange::send(Lane& lane, Chunk& chunk, uint64_t fragments) {
  if (chunk.to_send == 0) {
    const auto is_before = [this](uint32_t a, uint32_t b) {
      const int32_t first = priority(chunks_[a]), second = priority(chunks_[b]);
      return first != second ? first > second : chunks_[a].push_sequence < chunks_[b].push_sequence;
    };
    const uint32_t id = chunk_id(chunk);
    lane.sending.insert(std::upper_bound(lane.sending.begin(), lane.sending.end(), id, is_before),
                        id);
  }
  chunk.to_send |= fragments;
}

bool Exchange::send_no_more(Lane& lane, Chunk& chunk) {
  if (chunk.to_send == 0) return false;
  chunk.to_send = 0;
  std::erase(lane.sending, chunk_id(chunk));
  return true;
}

// An idle lane has room for a chunk whatever its size. Where the path is full, one that is more
// urgent than all that fill it goes beyond: they may be with the box by now, and wait for ranks
// that push what is urgent first.
bool Exchange::has_room(const Lane& lane, const Chunk& chunk, uint64_t now_ns) const {
  const uint64_t bytes = lane.outstanding_bytes + chunk.wire_bytes;
  if (lane.outstanding_bytes > 0 && bytes > lane.window_bytes) return false;
  const uint64_t path_bytes = lane.window.bytes(now_ns);
  if (lane.path_bytes == 0 || lane.path_bytes + chunk.wire_bytes <= path_bytes) return true;
  return path_bytes > 0 &&
         std::none_of(lane.in_flight.begin(), lane.in_flight.end(), [&](uint32_t id) {
           return chunks_[id].on_path && priority(chunks_[id]) >= priority(chunk);
         });
}

// Starts the next queued chunk if the window has room.
bool Exchange::open_window(Lane& lane, uint64_t now_ns) {
  const uint32_t id = lane.queue.top();
  Chunk& chunk = chunks_[id];
  if (!has_room(lane, chunk, now_ns)) return false;
  lane.queue.pop();
  chunk.mark = lane.window.leave(lane.path_bytes, now_ns);
  lane.outstanding_bytes += chunk.wire_bytes;
  lane.path_bytes += chunk.wire_bytes;
  lane.in_flight.push_back(id);
  chunk.in_flight = true;
  chunk.in_window = chunk.on_path = true;
  if (!chunk.announced) chunk.result_mask = 0;
  chunk.acknowledged_mask = 0;
  chunk.waits_for_others = false;
  chunk.missing_workers = 0;
  chunk.pushed_ns = now_ns;
  chunk.overtaken = false;
  if (!chunk.announced) {  // pushes are overtaken by pushes
    chunk.push_sequence = ++lane.newest_sequence;
    lane.pushed.push_back({id, chunk.push_sequence});
  }
  const bool fetching = tensors_[chunk.tensor].fetching && !chunk.giving;
  const bool pulls = fetching || chunk.announced || (chunk.pulls_first && !chunk.giving);
  chunk.flight_round = chunk.giving ? chunk.round - 1 : chunk.round;
  if (fetching) chunk.flight_round = session_.open_rounds[id] - 1;
  chunk.retransmitting = pulls;
  chunk.probes = pulls && !chunk.announced ? 1 : 0;
  chunk.measures = chunk.probes == 0;
  if (pulls) {
    lane.to_probe.push_back(id);
    arm(lane, chunk, now_ns);
  } else {
    send(lane, chunk, chunk.full_mask);
    statistics_.bytes_pushed += chunk.wire_bytes;
  }
  if (!fetching && !chunk.giving) {
    if (!chunk.announced) {
      trace_.push({.tensor = chunk.tensor,
                   .chunk = id,
                   .round = chunk.flight_round,
                   .pipeline = chunk.pipeline,
                   .pushed_ns = now_ns});
    }
    chunk.pushed = true;
    chunk.pulls_first = false;
  }
  return true;
}

void Exchange::fill_pushes(Lane& lane, uint64_t now_ns) {
  while (lane.outgoing_end < lane.outgoing.size()) {
    const bool is_idle = lane.sending.empty();
    const bool opens =
        !lane.queue.empty() &&
        (is_idle || lane.queue.top_priority() > priority(chunks_[lane.sending.front()]));
    if (opens && open_window(lane, now_ns)) {
      fill_probes(lane, now_ns);
      continue;
    }
    if (is_idle) {
      if (lane.queue.empty()) lane.window.starve(lane.path_bytes);
      return;
    }
    Chunk& chunk = chunks_[lane.sending.front()];
    make_push(lane, chunk, now_ns);
    if (chunk.to_send == 0) {
      trace_.send(chunk_id(chunk), now_ns);
      lane.sending.pop_front();
      arm(lane, chunk, now_ns);
    }
  }
}

// The next fragment of a gradient, or of a result that the box is given back.
void Exchange::make_push(Lane& lane, Chunk& chunk, uint64_t now_ns) {
  const Tensor& tensor = tensors_[chunk.tensor];
  const auto fragment = static_cast<uint32_t>(__builtin_ctzll(chunk.to_send));
  chunk.to_send &= chunk.to_send - 1;
  nic::TxPacket& packet = lane.outgoing[lane.outgoing_end++];
  address(lane, chunk, chunk.giving ? wire::PacketType::kState : wire::PacketType::kPush, now_ns,
          packet);
  packet.header.fragment = static_cast<uint16_t>(fragment);
  packet.header.payload_bytes = static_cast<uint16_t>(
      wire::fragment_length(chunk.wire_bytes, session_.fragment_bytes, fragment));
  packet.header.dtype_scale = static_cast<uint16_t>(tensor.dtype);
  if (chunk.to_send == 0) packet.header.flags |= wire::flag::kLast;
  if (chunk.retransmitting) {
    packet.header.flags |= wire::flag::kRetransmission;
    ++statistics_.retransmitted_fragments;
  }
  if (chunk.giving && chunk.contributors != UINT16_MAX) {
    packet.header.flags |= wire::flag::kPartial;
    packet.header.dtype_scale =
        static_cast<uint16_t>(packet.header.dtype_scale | chunk.contributors << 4);
  }
  const std::byte* source = chunk.giving ? tensor.shadow[(chunk.round - 1) & 1] : tensor.input;
  packet.payload = source + chunk.offset + size_t{fragment} * session_.fragment_bytes;
  if (out_of_cache_) fetch_payload(packet);
  packet.tag = wire::make_tag(session_.tag, packet.header, packet.payload);
}

void Exchange::fill_probes(Lane& lane, uint64_t now_ns) {
  while (lane.outgoing_end < lane.outgoing.size() && !lane.to_probe.empty()) {
    Chunk& chunk = chunks_[lane.to_probe.front()];
    lane.to_probe.pop_front();
    if (!chunk.in_flight || chunk.to_send != 0) continue;
    const size_t index = lane.outgoing_end++;
    nic::TxPacket& packet = lane.outgoing[index];
    address(lane, chunk, wire::PacketType::kPull, now_ns, packet);
    lane.outgoing_pull[index].held_mask = held_mask(chunk);
    packet.header.payload_bytes = sizeof(wire::PullPayload);
    packet.payload = reinterpret_cast<const std::byte*>(&lane.outgoing_pull[index]);
    packet.tag = wire::make_tag(session_.tag, packet.header, packet.payload);
    if (!chunk.announced || chunk.probes > 0) ++statistics_.probes_sent;
  }
}

void Exchange::address(Lane& lane, const Chunk& chunk, wire::PacketType type, uint64_t now_ns,
                       nic::TxPacket& packet) {
  packet.to = &lane.box;
  packet.header = {};
  packet.header.set_type(type);
  packet.header.spi = lane.spi;
  packet.header.packet_number = lane.next_packet_number++;
  packet.header.epoch = session_.epoch;
  packet.header.chunk = chunk_id(chunk);
  packet.header.round = chunk.flight_round;
  packet.header.credit = static_cast<uint16_t>(
      std::min<uint64_t>(lane.window_bytes, limits::kCreditBytesMax) / limits::kCreditUnitBytes);
  packet.header.timestamp_us = static_cast<uint32_t>(now_ns / 1000);
  packet.header.generation = session_.generation;
}

}  // namespace pbox::worker
