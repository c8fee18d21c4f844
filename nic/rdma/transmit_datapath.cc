#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// A packet without room is dropped, as on a network, once no send to its peer has completed for
// this long.
constexpr uint64_t kStuckNs = 10 * kNanosPerMilli;

uint64_t send_id(uint32_t slot, uint64_t sequence) {
  return kSendMark | uint64_t{slot} << kSequenceBits | (sequence & UINT32_MAX);
}

ibv_sge piece_of(const void* bytes, size_t count, uint32_t key) {
  return {reinterpret_cast<uint64_t>(bytes), static_cast<uint32_t>(count), key};
}

}  // namespace

// Marks a queue pair as broken: it neither sends nor receives any more.
void RdmaQueue::State::mark_broken(Peer& peer) {
  has_progress = true;
  if (peer.broken.exchange(true, std::memory_order_relaxed)) return;
  // If the queue pair is being closed, its packets in flight fail, which is no error.
  if (peer.state.load(std::memory_order_relaxed) == PeerState::kReady) {
    counters.add(PortCounter::kQueuePairErrors);
  }
}

// Frees the packets with sequences below `until`, which have been sent or never will be.
void RdmaQueue::State::free_sent(Peer& peer, uint64_t until) {
  PBOX_DCHECK(until >= peer.completed && until <= peer.posted);
  PBOX_DCHECK(peer.posted - peer.completed <= kSendDepth);
  for (; peer.completed < until; ++peer.completed) {
    Sent& sent = peer.sent[peer.completed % kSendDepth];
    PBOX_DCHECK(sent.staging == Sent::kNoStaging || staging_free.size() < options.staging_slots);
    if (sent.staging != Sent::kNoStaging) {
      PBOX_DCHECK(peer.staged > 0);
      --peer.staged;
      staging_free.push_back(sent.staging);
    }
    if (sent.region != nullptr) sent.region->in_flight.fetch_sub(1, std::memory_order_release);
    sent = {};
  }
  peer.full_since_ns = 0;
  has_progress = true;
}

void RdmaQueue::State::on_sent(const ibv_wc& completion) {
  const auto slot = static_cast<uint32_t>((completion.wr_id & ~kSendMark) >> kSequenceBits);
  if (slot >= peer_count) return;
  Peer& peer = peers[slot];
  // If the numbers differ, the completion belongs to an earlier queue pair in the same slot.
  if (peer.number.load(std::memory_order_relaxed) != completion.qp_num) return;
  if (completion.status != IBV_WC_SUCCESS) return mark_broken(peer);
  const auto done = static_cast<uint32_t>(completion.wr_id) + 1;
  const uint32_t count = done - static_cast<uint32_t>(peer.completed);
  if (count <= peer.posted - peer.completed) free_sent(peer, peer.completed + count);
}

RdmaQueue::State::Room RdmaQueue::State::make_room(Peer& peer, bool needs_staging) {
  // If packets can be held, no peer may take all staging buffers.
  const bool holds = held_packets.is_enabled();
  const uint32_t share = holds ? std::max(options.staging_slots / 2, 1u) : options.staging_slots;
  const auto is_full = [&] {
    return peer.posted - peer.completed >= kSendDepth || (needs_staging && peer.staged >= share);
  };
  const auto has_room = [&] { return !is_full() && (!needs_staging || !staging_free.empty()); };
  if (has_room()) return Room::kYes;
  // The peer's chain is not posted yet, so it cannot complete.
  if (peer.first != nullptr) post(peer);
  poll_completions();
  if (has_room()) return Room::kYes;
  if (peer.broken.load(std::memory_order_relaxed)) return Room::kNever;
  if (holds && is_full()) return Room::kFull;
  const uint64_t now_ns = monotonic_ns();
  if (peer.full_since_ns == 0) peer.full_since_ns = now_ns;
  return now_ns - peer.full_since_ns < kStuckNs ? Room::kNo : Room::kNever;
}

// Returns the registered region that holds the payload; nullptr if the payload must be copied.
PayloadMemory::Region* RdmaQueue::State::registered_region(const TxPacket& packet) {
  PayloadMemory::Region* region = payload_memory.find(packet.payload, packet.header.payload_bytes);
  if (region == nullptr) return nullptr;
  const bool is_refused = region->key.load(std::memory_order_relaxed) == PayloadMemory::kRefused;
  return is_refused ? nullptr : region;
}

// Writes the packet's scatter/gather elements and returns their number. Small packets are sent
// inline: the device copies them at once. Other payloads are sent in place if their memory is
// registered, or else from a copy.
uint32_t RdmaQueue::State::make_pieces(Peer& peer, const TxPacket& packet,
                                       PayloadMemory::Region* region, ibv_sge* pieces, Sent& sent,
                                       unsigned& flags) {
  const uint32_t payload_bytes = packet.header.payload_bytes;
  PBOX_DCHECK(packet.payload != nullptr || payload_bytes == 0);
  PBOX_DCHECK(sent.region == nullptr && sent.staging == Sent::kNoStaging);
  if (limits::kPacketOverheadBytes + payload_bytes <= kInlineBytes) {
    flags |= IBV_SEND_INLINE;
    uint32_t count = 0;
    pieces[count++] = piece_of(&packet.header, limits::kHeaderBytes, 0);
    if (payload_bytes > 0) pieces[count++] = piece_of(packet.payload, payload_bytes, 0);
    pieces[count++] = piece_of(packet.tag.data(), limits::kTagBytes, 0);
    return count;
  }
  sent.region = region;
  if (sent.region != nullptr) {
    sent.region->in_flight.fetch_add(1, std::memory_order_relaxed);
    std::byte* head = head_of(peer, peer.posted);
    std::memcpy(head, &packet.header, limits::kHeaderBytes);
    std::memcpy(head + limits::kHeaderBytes, packet.tag.data(), limits::kTagBytes);
    pieces[0] = piece_of(head, limits::kHeaderBytes, own_memory->lkey);
    pieces[1] = piece_of(packet.payload, payload_bytes,
                         static_cast<uint32_t>(sent.region->key.load(std::memory_order_relaxed)));
    pieces[2] = piece_of(head + limits::kHeaderBytes, limits::kTagBytes, own_memory->lkey);
    counters.add(PortCounter::kExternalPackets);
    return 3;
  }
  PBOX_DCHECK(!staging_free.empty());  // make_room() made sure
  PBOX_DCHECK(limits::kPacketOverheadBytes + payload_bytes <= kBufferBytes);
  sent.staging = staging_free.back();
  staging_free.pop_back();
  ++peer.staged;
  std::byte* copy = staging_buffers + sent.staging * kBufferBytes;
  std::memcpy(copy, &packet.header, limits::kHeaderBytes);
  std::memcpy(copy + limits::kHeaderBytes, packet.payload, payload_bytes);
  std::memcpy(copy + limits::kHeaderBytes + payload_bytes, packet.tag.data(), limits::kTagBytes);
  pieces[0] = piece_of(copy, limits::kPacketOverheadBytes + payload_bytes, own_memory->lkey);
  counters.add(PortCounter::kStagedPackets);
  if (payload_memory.find(packet.payload, payload_bytes) != nullptr) ++refused_packets;
  // All peers share few staging buffers, so each copied packet requests a completion, and its
  // buffer is free as soon as it has been sent.
  flags |= IBV_SEND_SIGNALED;
  return 1;
}

// Turns the request into a write to the next slot of the peer's ring. The sender does not know
// which slots are free. The peer posts a receive for each slot that it has released, and without
// one the device makes the write wait.
void RdmaQueue::State::write_to_ring(Peer& peer, const TxPacket& packet, ibv_send_wr& request) {
  PBOX_DCHECK(peer.target_next < peer.target.slots);
  const uint32_t slot = peer.target_next;
  peer.target_next = slot + 1 == peer.target.slots ? 0 : slot + 1;
  const uint32_t bytes = limits::kPacketOverheadBytes + packet.header.payload_bytes;
  PBOX_DCHECK(bytes <= peer.target.slot_bytes);
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(wire::pack({static_cast<uint16_t>(slot), static_cast<uint16_t>(bytes)}));
  request.wr.rdma.remote_addr = peer.target.address + uint64_t{slot} * peer.target.slot_bytes;
  request.wr.rdma.rkey = peer.target.key;
}

// Adds the packet to its peer's chain, or holds it if the peer is full. Drops and counts it if the
// peer is broken or stuck, or if it would have to be held and cannot be. Returns false if there is
// no room now.
bool RdmaQueue::State::make_request(Peer& peer, const TxPacket& packet, size_t index) {
  const bool is_small = limits::kPacketOverheadBytes + packet.header.payload_bytes <= kInlineBytes;
  PayloadMemory::Region* region = is_small ? nullptr : registered_region(packet);
  const bool needs_staging = !is_small && region == nullptr;
  // A packet waits behind those of its peer that are held already, so that their order is kept.
  const bool waits = held_packets.count(slot_of(peer)) > 0;
  const Room room = waits ? Room::kFull : make_room(peer, needs_staging);
  if (room == Room::kNo) return false;
  if (room == Room::kYes && !peer.broken.load(std::memory_order_relaxed)) {
    append_request(peer, packet, region, index);
    return true;
  }
  // A payload in memory that is not registered may change as soon as this call returns, so its
  // packet cannot be held.
  const bool is_held =
      room == Room::kFull && !needs_staging && held_packets.add(slot_of(peer), packet, region);
  if (!is_held) counters.add(PortCounter::kNoQueuePair);
  return true;
}

void RdmaQueue::State::append_request(Peer& peer, const TxPacket& packet,
                                      PayloadMemory::Region* region, size_t index) {
  unsigned flags = peer.posted % kSignalInterval == kSignalInterval - 1 ? IBV_SEND_SIGNALED : 0;
  ibv_sge* pieces = &send_pieces[kSendPieces * index];
  Sent& sent = peer.sent[peer.posted % kSendDepth];
  PBOX_DCHECK(peer.posted - peer.completed < kSendDepth);
  const uint32_t count = make_pieces(peer, packet, region, pieces, sent, flags);
  PBOX_DCHECK(count >= 1 && count <= kSendPieces);
  ibv_send_wr& request = send_requests[index];
  request = {};
  request.wr_id = send_id(slot_of(peer), peer.posted);
  request.sg_list = pieces;
  request.num_sge = static_cast<int>(count);
  request.opcode = IBV_WR_SEND;
  request.send_flags = flags;
  if (peer.target.slots > 0) write_to_ring(peer, packet, request);
  ++peer.posted;
  (peer.first == nullptr ? peer.first : peer.last->next) = &request;
  peer.last = &request;
}

// Sends the held packets for which there is room now. Each one is posted at once, because its copy
// in held_packets is removed afterwards.
void RdmaQueue::State::send_held() {
  if (!has_progress || held_packets.empty()) return;
  has_progress = false;
  held_packets.release([this](const HeldPackets::Packet& held) {
    PBOX_DCHECK(held.peer < peer_count);
    Peer& peer = peers[held.peer];
    const bool is_gone = peer.state.load(std::memory_order_acquire) != PeerState::kReady ||
                         peer.broken.load(std::memory_order_relaxed);
    if (is_gone) {
      counters.add(PortCounter::kNoQueuePair);
      return true;
    }
    if (peer.posted - peer.completed >= kSendDepth) return false;
    PBOX_DCHECK(peer.first == nullptr);
    const TxPacket packet = held.to_send();
    append_request(peer, packet, held.region, 0);
    post(peer);
    return true;
  });
}

// Posts the peer's chain, all of a burst's packets to that peer, in one call.
void RdmaQueue::State::post(Peer& peer) {
  PBOX_DCHECK(peer.first != nullptr && peer.last->next == nullptr);
  if (options.signals_bursts) peer.last->send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(peer.queue_pair.get(), peer.first, &bad);
  peer.first = peer.last = nullptr;
  // Requests that the device did not take are freed with the queue pair.
  if (error != 0) mark_broken(peer);
}

size_t RdmaQueue::State::tx_burst(std::span<const TxPacket> packets, const Endpoint* to) {
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  send_held();
  std::array<Peer*, limits::kBurstPackets> touched;
  size_t touched_count = 0;
  size_t index = 0;
  for (; index < packets.size(); ++index) {
    PBOX_DCHECK(to != nullptr || packets[index].to != nullptr);
    Peer* peer = peer_at(to != nullptr ? *to : *packets[index].to);
    if (peer == nullptr) {
      counters.add(PortCounter::kNoQueuePair);
      continue;
    }
    const bool is_new = peer->first == nullptr;
    if (!make_request(*peer, packets[index], index)) break;
    if (is_new && peer->first != nullptr) {
      PBOX_DCHECK(touched_count < touched.size());
      touched[touched_count++] = peer;
    }
  }
  for (size_t each = 0; each < touched_count; ++each) {
    if (touched[each]->first != nullptr) post(*touched[each]);
  }
  return index;
}

}  // namespace pbox::nic
