// Sends a lane's chunks: from the queue, through the window, into packets.
#include <algorithm>
#include <array>
#include <utility>

#include "base/numa_arena.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/push_weight.h"
#include "nic/wire/zeros.h"
#include "worker/protocol/lane.h"

namespace pbox::worker {
namespace {

// The kernel copies a payload out of memory line by line and waits for each. With prefetches, many
// lines are loaded at the same time. Inlined by force, because GCC drops calls of functions that
// only prefetch.
[[gnu::always_inline]] inline void fetch_payload(const nic::TxPacket& packet) {
  constexpr int kForReading = 0;
  constexpr int kSecondLevelCache = 2;
  for (size_t at = 0; at < packet.header.payload_bytes; at += kCacheLineBytes) {
    __builtin_prefetch(packet.payload + at, kForReading, kSecondLevelCache);
  }
}

// Our own header and tag, and roughly those of UDP, IP and Ethernet.
constexpr uint64_t kFrameOverheadBytes = limits::kPacketOverheadBytes + 58;

// Ports take an address of every payload, also of an empty one.
constexpr std::array<std::byte, 1> kNoPayload{};

}  // namespace

std::span<const nic::TxPacket> Lane::to_send(uint64_t now_ns) {
  if (outgoing_begin_ == outgoing_end_) {
    outgoing_begin_ = outgoing_end_ = 0;
    seal_->tick(now_ns);
    fill_probes(now_ns);
    fill_pushes(now_ns);
  }
  PBOX_DCHECK(outgoing_begin_ <= outgoing_end_ && outgoing_end_ <= outgoing_.size());
  return {outgoing_.data() + outgoing_begin_, outgoing_end_ - outgoing_begin_};
}

std::optional<int32_t> Lane::next_priority(uint64_t now_ns) const {
  if (has_unsent()) {
    const wire::Header& next = outgoing_[outgoing_begin_].header;
    PBOX_DCHECK(next.chunk < state_.chunks.size() && next.spi == spi_);
    return next.type() == wire::PacketType::kPull ? kProbePriority
                                                  : state_.priority(chunk(next.chunk));
  }
  if (!to_probe_.empty()) return kProbePriority;
  if (!path_->may_send(now_ns)) return std::nullopt;
  std::optional<int32_t> next;
  if (!sending_.empty()) next = state_.priority(chunk(sending_.front()));
  PBOX_DCHECK(sending_.empty() || chunk(sending_.front()).to_send != 0);
  if (queue_.empty() || (next && queue_.top_priority() <= *next)) return next;
  return has_room(chunk(queue_.top()), now_ns) ? queue_.top_priority() : next;
}

void Lane::sent(size_t count) {
  PBOX_DCHECK(count <= outgoing_end_ - outgoing_begin_);
  outgoing_begin_ += count;
  state_.statistics.packets_sent += count;
}

// A chunk of a higher priority goes before the fragments that other chunks have still to send.
void Lane::send(ExchangeChunk& chunk, uint64_t fragments) {
  PBOX_DCHECK(chunk.in_flight);
  PBOX_DCHECK((fragments & ~chunk.full_mask) == 0);
  const uint64_t now = portion(fragments);
  chunk.is_portion = now != fragments;
  if (chunk.is_portion) chunk.is_measurable = false;
  if (chunk.to_send == 0) {
    const auto is_before = [this](uint32_t a, uint32_t b) {
      const ExchangeChunk &first = this->chunk(a), &second = this->chunk(b);
      const int32_t priority = state_.priority(first), other = state_.priority(second);
      return priority != other ? priority > other : first.push_sequence < second.push_sequence;
    };
    const uint32_t id = state_.chunk_id(chunk);
    sending_.insert(std::upper_bound(sending_.begin(), sending_.end(), id, is_before), id);
  }
  chunk.to_send |= now;
}

// A NIC's receive ring has a slot for each packet, however small, and the box grants a slot as the
// bytes of a whole fragment. Fragments that are too large for a NIC occur only with sockets on
// loopback, whose receive buffer counts bytes, and with RDMA, which loses nothing.
uint64_t Lane::window_cost(uint64_t bytes, uint64_t packets) const {
  constexpr uint64_t kNicFragmentBytesMax = 8192;
  constexpr uint64_t kSmallPacketBytes = 2304;  // the kernel's memory for the smallest packet
  const uint64_t fragment_bytes = state_.session.fragment_bytes;
  if (fragment_bytes <= kNicFragmentBytesMax) return fragment_bytes * packets;
  return std::max<uint64_t>(bytes, kSmallPacketBytes * packets);
}

// A fragment that is zero in the push and in the result takes no packet of its own. Whether it will
// be zero in the result is not known yet, so the last result is taken as a guess.
void Lane::measure_flight(ExchangeChunk& chunk) const {
  const uint64_t absent = chunk.zero_mask & chunk.zero_result_mask;
  chunk.flight_bytes = chunk.wire_bytes;
  chunk.flight_packets = static_cast<uint8_t>(__builtin_popcountll(chunk.full_mask & ~absent));
  if (absent == 0) return;
  chunk.flight_bytes -= wire::bytes_of_fragments(chunk.wire_bytes, chunk.fragment_bytes, absent);
  chunk.flight_bytes += sizeof(wire::ZerosPayload);
  ++chunk.flight_packets;
}

// Returns the first of these fragments, as many as the credit has slots for. One slot is left for
// the PULL that follows.
uint64_t Lane::portion(uint64_t fragments) const {
  const uint64_t slots = window_bytes_ / state_.session.fragment_bytes;
  const auto count = static_cast<uint64_t>(__builtin_popcountll(fragments));
  if (count <= std::max<uint64_t>(slots, 1)) return fragments;
  uint64_t rest = fragments;
  for (uint64_t sent = 0; sent < std::max<uint64_t>(slots, 2) - 1; ++sent) rest &= rest - 1;
  PBOX_DCHECK(rest != 0 && rest != fragments);
  return fragments & ~rest;
}

bool Lane::cancel_sending(ExchangeChunk& chunk) {
  if (chunk.to_send == 0) return false;
  chunk.to_send = 0;
  std::erase(sending_, state_.chunk_id(chunk));
  return true;
}

// Payloads and their rooms stay in place. Nothing is written there until all packets have left.
void Lane::drop_unsent(uint32_t chunk_id) {
  size_t kept = outgoing_begin_;
  for (size_t index = outgoing_begin_; index < outgoing_end_; ++index) {
    if (outgoing_[index].header.chunk == chunk_id) continue;
    if (kept != index) {
      outgoing_[kept] = outgoing_[index];
      outgoing_payload_[kept] = outgoing_payload_[index];
    }
    ++kept;
  }
  PBOX_DCHECK(kept <= outgoing_end_);
  outgoing_end_ = kept;
}

// An idle lane has room for a chunk of any size. How much of the chunk is zero is not known yet.
bool Lane::has_room(const ExchangeChunk& chunk, uint64_t now_ns) const {
  const auto fragments = static_cast<uint64_t>(__builtin_popcountll(chunk.full_mask));
  const uint64_t bytes = outstanding_bytes_ + window_cost(chunk.wire_bytes, fragments);
  if (outstanding_bytes_ > 0 && bytes > window_bytes_) return false;
  return path_->has_room(chunk.wire_bytes, state_.priority(chunk), now_ns);
}

// Starts the next queued chunk if the window has room for it.
bool Lane::open_window(uint64_t now_ns) {
  const uint32_t id = queue_.top();
  ExchangeChunk& chunk = this->chunk(id);
  if (!has_room(chunk, now_ns)) return false;
  queue_.pop();
  path_->note_unqueued(1);
  PBOX_DCHECK(!chunk.in_flight && !chunk.in_window && !chunk.on_path);
  const bool fetching = state_.tensors[chunk.tensor].fetching && !chunk.restoring;
  const bool pulls = fetching || chunk.announced || (chunk.pulls_first && !chunk.restoring);
  PBOX_DCHECK(!chunk.restoring || chunk.in_shadow);
  chunk.flight_round = chunk.restoring ? chunk.round - 1 : chunk.round;
  chunk.zero_mask = 0;
  if (!pulls && state_.names_zeros(chunk)) find_zeros(chunk);
  start_flight(chunk, now_ns);
  if (fetching) chunk.flight_round = state_.session.open_rounds[id] - 1;
  if (state_.pushes_rows(chunk)) {
    chunk.push_mask = state_.row_chunk(chunk).packet_starts();
  } else if (state_.tensors[chunk.tensor].is_table()) {
    chunk.push_mask = chunk.full_mask;
  }
  chunk.retransmitting = pulls;
  chunk.unsent = 0;
  chunk.probes = pulls && !chunk.announced ? 1 : 0;
  // A held round's result arrives once the whole round is complete. So it measures no path time.
  chunk.is_measurable = chunk.probes == 0 && !state_.session.holds_rounds;
  if (pulls) {
    pull(chunk, now_ns);
  } else {
    chunk.unsent = chunk.push_mask;
    send(chunk, chunk.push_mask);
  }
  if (fetching || chunk.restoring) return true;
  if (!chunk.announced) {
    state_.trace.push({.tensor = chunk.tensor,
                       .chunk = id,
                       .round = chunk.flight_round,
                       .pipeline = chunk.pipeline,
                       .pushed_ns = now_ns});
  }
  chunk.pushed = true;
  chunk.pulls_first = false;
  return true;
}

// Reads the first bytes of each fragment, and the others only of fragments that may be zero. The
// chunk is about to be sent, so it is read anyway. Prefetches the same bytes of the next chunk.
void Lane::find_zeros(ExchangeChunk& chunk) {
  state_.find_zeros(chunk, chunk.full_mask);
  if (!state_.out_of_cache || queue_.empty()) return;
  const ExchangeChunk& next = this->chunk(queue_.top());
  const ExchangeTensor& tensor = state_.tensors[next.tensor];
  if (tensor.input == nullptr || tensor.encoded || !state_.names_zeros(next)) return;
  const std::byte* const end = tensor.input + next.offset + next.wire_bytes;
  for (const std::byte* at = tensor.input + next.offset; at < end; at += next.fragment_bytes) {
    __builtin_prefetch(at);
  }
}

void Lane::start_flight(ExchangeChunk& chunk, uint64_t now_ns) {
  const uint32_t id = state_.chunk_id(chunk);
  measure_flight(chunk);
  path_->enter(state_, chunk, state_.priority(chunk), chunk.announced, now_ns);
  outstanding_bytes_ += window_cost(chunk.flight_bytes, chunk.flight_packets);
  add(in_flight_, chunk);
  chunk.in_flight = chunk.in_window = true;
  chunk.acknowledged_mask = 0;
  chunk.waits_for_others = false;
  chunk.missing_workers = 0;
  chunk.pushed_ns = now_ns;
  chunk.overtaken = false;
  if (chunk.announced) return;  // a pull, which pushes do not overtake
  chunk.result_mask = chunk.zero_result_mask = 0;
  chunk.push_sequence = ++newest_sequence_;
  pushed_.push_back({id, chunk.push_sequence});
}

void Lane::fill_pushes(uint64_t now_ns) {
  paced_until_ns_ = UINT64_MAX;
  while (outgoing_end_ < outgoing_.size()) {
    if (!path_->may_send(now_ns)) {
      paced_until_ns_ = path_->paced_until_ns();
      return;
    }
    const bool is_idle = sending_.empty();
    const bool opens =
        !queue_.empty() &&
        (is_idle || queue_.top_priority() > state_.priority(this->chunk(sending_.front())));
    if (opens && open_window(now_ns)) {
      fill_probes(now_ns);
      continue;
    }
    if (is_idle) {
      if (queue_.empty()) path_->starve();
      return;
    }
    ExchangeChunk& chunk = this->chunk(sending_.front());
    PBOX_DCHECK(chunk.to_send != 0 && chunk.in_flight);
    const size_t index = outgoing_end_;
    make_push(chunk, now_ns);
    path_->note_sent(outgoing_[index].header.payload_bytes + kFrameOverheadBytes, now_ns);
    if (chunk.to_send == 0) {
      state_.trace.send(state_.chunk_id(chunk), now_ns);
      sending_.pop_front();
      chunk.is_portion ? pull(chunk, now_ns) : arm(chunk, now_ns);
    }
  }
}

// Builds the next fragment of a gradient, or of a result that is restored on the box.
void Lane::make_push(ExchangeChunk& chunk, uint64_t now_ns) {
  const uint64_t others = chunk.to_send & ~chunk.zero_mask;
  if (others == 0) return make_zeros(chunk, now_ns);
  const auto fragment = static_cast<uint32_t>(__builtin_ctzll(others));
  const uint64_t bit = uint64_t{1} << fragment;
  chunk.to_send &= ~bit;
  const bool is_first_copy = (chunk.unsent & bit) != 0;
  chunk.unsent &= ~bit;
  chunk.sent_us = static_cast<uint32_t>(now_ns / 1000);
  nic::TxPacket& packet = outgoing_[outgoing_end_++];
  address(chunk, chunk.restoring ? wire::PacketType::kState : wire::PacketType::kPush, now_ns,
          packet);
  packet.header.fragment = static_cast<uint16_t>(fragment);
  const SlotRound* slot = state_.slot(chunk);
  const bool is_empty = state_.pushes_nothing(chunk);
  PBOX_DCHECK(!is_empty || bit == (chunk.full_mask & ~(chunk.full_mask >> 1)));
  packet.header.payload_bytes = static_cast<uint16_t>(
      is_empty ? 0 : wire::fragment_length(chunk.wire_bytes, chunk.fragment_bytes, fragment));
  packet.header.dtype_scale = static_cast<uint16_t>(state_.payload_dtype(chunk));
  const uint16_t weight_code = state_.tensors[chunk.tensor].weight_code;
  if (!chunk.restoring) wire::set_weight_code(weight_code, packet.header);
  if (slot != nullptr) {
    wire::RoundShape shape = slot->shape;
    shape.fragment_count = static_cast<uint16_t>(__builtin_popcountll(chunk.full_mask));
    wire::write_shape(shape, is_empty, packet.header);
  }
  if (chunk.to_send == 0) packet.header.flags |= wire::flag::kLast;
  if (chunk.retransmitting && !is_first_copy) {
    packet.header.flags |= wire::flag::kRetransmission;
    ++state_.statistics.retransmitted_fragments;
  }
  if (chunk.restoring && chunk.contributors != UINT16_MAX) {
    packet.header.flags |= wire::flag::kPartial;
    packet.header.dtype_scale =
        static_cast<uint16_t>(packet.header.dtype_scale | chunk.contributors << 4);
  }
  if (is_empty) return seal(outgoing_end_ - 1, kNoPayload.data());
  if (state_.pushes_rows(chunk)) return make_rows_push(chunk, fragment, is_first_copy, packet);
  if (is_first_copy) state_.statistics.bytes_pushed += packet.header.payload_bytes;
  const std::byte* source = chunk.restoring ? state_.given_back(chunk) : state_.push(chunk);
  packet.payload = source + size_t{fragment} * chunk.fragment_bytes;
  if (state_.out_of_cache && !is_unread(packet.payload)) fetch_payload(packet);
  seal(outgoing_end_ - 1, packet.payload);
}

bool Lane::is_unread(const std::byte* payload) const {
  const std::span<const std::byte> unread = state_.session.unread_memory;
  return !unread.empty() && payload >= unread.data() && payload < unread.data() + unread.size();
}

// Builds the packet that names the fragments which are zero, after all others have been sent.
void Lane::make_zeros(ExchangeChunk& chunk, uint64_t now_ns) {
  const uint64_t mask = std::exchange(chunk.to_send, 0);
  PBOX_DCHECK(mask != 0 && (mask & ~chunk.zero_mask) == 0 && state_.names_zeros(chunk));
  const uint64_t first_copies = mask & chunk.unsent;
  chunk.unsent &= ~mask;
  chunk.sent_us = static_cast<uint32_t>(now_ns / 1000);
  const size_t index = outgoing_end_++;
  nic::TxPacket& packet = outgoing_[index];
  address(chunk, wire::PacketType::kZeros, now_ns, packet);
  packet.header.fragment = static_cast<uint16_t>(__builtin_ctzll(mask));
  packet.header.payload_bytes = sizeof(wire::ZerosPayload);
  packet.header.dtype_scale = static_cast<uint16_t>(state_.payload_dtype(chunk));
  wire::set_weight_code(state_.tensors[chunk.tensor].weight_code, packet.header);
  packet.header.flags = wire::flag::kLast;
  if (first_copies != 0) {
    state_.statistics.bytes_pushed += sizeof(wire::ZerosPayload);
    state_.statistics.zero_fragments += static_cast<uint64_t>(__builtin_popcountll(first_copies));
  } else if (chunk.retransmitting) {
    packet.header.flags |= wire::flag::kRetransmission;
    ++state_.statistics.retransmitted_fragments;
  }
  outgoing_zeros_[index] = {mask};
  seal(index, reinterpret_cast<const std::byte*>(&outgoing_zeros_[index]));
}

// Fills the packet with the pushed rows of all fragments that it covers.
void Lane::make_rows_push(const ExchangeChunk& chunk, uint32_t fragment, bool is_first_copy,
                          nic::TxPacket& packet) {
  std::byte* const payload = rows_room_.at(outgoing_end_ - 1);
  PBOX_DCHECK(payload != nullptr && (chunk.push_mask >> fragment & 1) != 0);
  state_.row_chunk(chunk).make_packet(fragment, payload, packet.header);
  if (is_first_copy) state_.statistics.bytes_pushed += packet.header.payload_bytes;
  seal(outgoing_end_ - 1, payload);
}

void Lane::fill_probes(uint64_t now_ns) {
  while (outgoing_end_ < outgoing_.size() && !to_probe_.empty()) {
    const ExchangeChunk& chunk = this->chunk(to_probe_.front());
    to_probe_.pop_front();
    if (!chunk.in_flight || chunk.to_send != 0) continue;
    const size_t index = outgoing_end_++;
    nic::TxPacket& packet = outgoing_[index];
    address(chunk, wire::PacketType::kPull, now_ns, packet);
    if (state_.tensors[chunk.tensor].deltas) {  // the PULL says which form of the result is wanted
      packet.header.dtype_scale = static_cast<uint16_t>(state_.payload_dtype(chunk));
    }
    outgoing_pull_[index] = {{state_.held_mask(chunk)}, challenge_};
    packet.header.payload_bytes =
        challenge_.number != 0 ? sizeof(wire::ProvingPullPayload) : sizeof(wire::PullPayload);
    seal(index, reinterpret_cast<const std::byte*>(&outgoing_pull_[index]));
    if (!chunk.announced || chunk.probes > 0) ++state_.statistics.probes_sent;
  }
}

// Gives the packet its payload, a number and a tag.
void Lane::seal(size_t index, const std::byte* payload) {
  PBOX_DCHECK(index < outgoing_end_);
  outgoing_payload_[index] = outgoing_[index].payload = payload;
  seal_->seal(state_.session.tag, outgoing_[index], room_.at(index));
}

void Lane::address(const ExchangeChunk& chunk, wire::PacketType type, uint64_t now_ns,
                   nic::TxPacket& packet) {
  PBOX_DCHECK(state_.session.pipelines[chunk.pipeline].spi == spi_);
  packet.to = &box_;
  packet.header = {};
  packet.header.set_type(type);
  packet.header.spi = spi_;
  packet.header.epoch = state_.session.epoch;
  packet.header.chunk = state_.chunk_id(chunk);
  packet.header.round = chunk.flight_round;
  packet.header.credit = static_cast<uint16_t>(
      std::min<uint64_t>(window_bytes_, limits::kCreditBytesMax) / limits::kCreditUnitBytes);
  packet.header.timestamp_us = static_cast<uint32_t>(now_ns / 1000);
  packet.header.generation = state_.session.generation;
}

}  // namespace pbox::worker
