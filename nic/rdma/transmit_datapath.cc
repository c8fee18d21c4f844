#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// A peer that takes nothing for so long does not hold up the others: its packets are lost, as they
// would be on a wire.
constexpr uint64_t kStuckNs = 10 * kNanosPerMilli;

uint64_t send_id(uint32_t slot, uint64_t sequence) {
  return kSendMark | uint64_t{slot} << kSequenceBits | (sequence & UINT32_MAX);
}

ibv_sge piece_of(const void* bytes, size_t count, uint32_t key) {
  return {reinterpret_cast<uint64_t>(bytes), static_cast<uint32_t>(count), key};
}

}  // namespace

// Nothing comes or goes there any more.
void RdmaQueue::State::end(Peer& peer) {
  if (peer.broken.exchange(true, std::memory_order_relaxed)) return;
  // One that is being closed fails what is under way; that is no error.
  if (peer.state.load(std::memory_order_relaxed) == PeerState::kReady) {
    counters.add(PortCounter::kQueuePairErrors);
  }
}

// The packets before `until` have left, or never will.
void RdmaQueue::State::free_sent(Peer& peer, uint64_t until) {
  for (; peer.completed < until; ++peer.completed) {
    Sent& sent = peer.sent[peer.completed % kSendDepth];
    if (sent.staging != Sent::kNoStaging) staging_free.push_back(sent.staging);
    if (sent.region != nullptr) sent.region->in_flight.fetch_sub(1, std::memory_order_release);
    sent = {};
  }
  peer.full_since_ns = 0;
}

void RdmaQueue::State::on_sent(const ibv_wc& completion) {
  const auto slot = static_cast<uint32_t>((completion.wr_id & ~kSendMark) >> kSequenceBits);
  if (slot >= peer_count) return;
  Peer& peer = peers[slot];
  // Of a queue pair that had the slot before.
  if (peer.number.load(std::memory_order_relaxed) != completion.qp_num) return;
  if (completion.status != IBV_WC_SUCCESS) return end(peer);
  const auto done = static_cast<uint32_t>(completion.wr_id) + 1;
  const uint32_t count = done - static_cast<uint32_t>(peer.completed);
  if (count <= peer.posted - peer.completed) free_sent(peer, peer.completed + count);
}

RdmaQueue::State::Room RdmaQueue::State::make_room(Peer& peer, bool needs_staging) {
  const auto has_room = [&] {
    return peer.posted - peer.completed < kSendDepth && (!needs_staging || !staging_free.empty());
  };
  if (has_room()) return Room::kYes;
  // Its chain is not with the device yet, and cannot complete.
  if (peer.first != nullptr) post(peer);
  poll_completions();
  if (has_room()) return Room::kYes;
  if (peer.broken.load(std::memory_order_relaxed)) return Room::kNever;
  const uint64_t now_ns = monotonic_ns();
  if (peer.full_since_ns == 0) peer.full_since_ns = now_ns;
  return now_ns - peer.full_since_ns < kStuckNs ? Room::kNo : Room::kNever;
}

// Where the payload lies, if the device can read it there.
PayloadMemory::Region* RdmaQueue::State::readable(const TxPacket& packet) {
  PayloadMemory::Region* region = payload_memory.find(packet.payload, packet.header.payload_bytes);
  if (region == nullptr) return nullptr;
  const bool is_refused = region->key.load(std::memory_order_relaxed) == PayloadMemory::kRefused;
  return is_refused ? nullptr : region;
}

// Inline where it is small: the device takes the bytes at once. Else from where they lie, or from a
// copy.
uint32_t RdmaQueue::State::make_pieces(Peer& peer, const TxPacket& packet, ibv_sge* pieces,
                                       Sent& sent, unsigned& flags) {
  const uint32_t payload_bytes = packet.header.payload_bytes;
  if (limits::kPacketOverheadBytes + payload_bytes <= kInlineBytes) {
    flags |= IBV_SEND_INLINE;
    uint32_t count = 0;
    pieces[count++] = piece_of(&packet.header, limits::kHeaderBytes, 0);
    if (payload_bytes > 0) pieces[count++] = piece_of(packet.payload, payload_bytes, 0);
    pieces[count++] = piece_of(packet.tag.data(), limits::kTagBytes, 0);
    return count;
  }
  sent.region = readable(packet);
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
  sent.staging = staging_free.back();
  staging_free.pop_back();
  std::byte* copy = staging_buffers + sent.staging * kBufferBytes;
  std::memcpy(copy, &packet.header, limits::kHeaderBytes);
  std::memcpy(copy + limits::kHeaderBytes, packet.payload, payload_bytes);
  std::memcpy(copy + limits::kHeaderBytes + payload_bytes, packet.tag.data(), limits::kTagBytes);
  pieces[0] = piece_of(copy, limits::kPacketOverheadBytes + payload_bytes, own_memory->lkey);
  counters.add(PortCounter::kStagedPackets);
  if (payload_memory.find(packet.payload, payload_bytes) != nullptr) ++refused_packets;
  // Copies are few and shared by all peers: they come back one by one.
  flags |= IBV_SEND_SIGNALED;
  return 1;
}

// At the peer's next slot. It is not told when slots are free: the peer has fewer receives than
// slots, one for each that it has let go of, and its device makes this one wait without them.
void RdmaQueue::State::aim(Peer& peer, const TxPacket& packet, ibv_send_wr& request) {
  const uint32_t slot = peer.target_next;
  peer.target_next = slot + 1 == peer.target.slots ? 0 : slot + 1;
  const uint32_t bytes = limits::kPacketOverheadBytes + packet.header.payload_bytes;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(wire::pack({static_cast<uint16_t>(slot), static_cast<uint16_t>(bytes)}));
  request.wr.rdma.remote_addr = peer.target.address + uint64_t{slot} * peer.target.slot_bytes;
  request.wr.rdma.rkey = peer.target.key;
}

// Adds the packet to its peer's chain. False if there is no room now.
bool RdmaQueue::State::make_request(Peer& peer, const TxPacket& packet, size_t index) {
  const bool is_small = limits::kPacketOverheadBytes + packet.header.payload_bytes <= kInlineBytes;
  const bool needs_staging = !is_small && readable(packet) == nullptr;
  const Room room = make_room(peer, needs_staging);
  if (room == Room::kNo) return false;
  if (room == Room::kNever || peer.broken.load(std::memory_order_relaxed)) {
    counters.add(PortCounter::kNoQueuePair);
    return true;
  }
  unsigned flags = peer.posted % kSignalInterval == kSignalInterval - 1 ? IBV_SEND_SIGNALED : 0;
  ibv_sge* pieces = &send_pieces[kSendPieces * index];
  Sent& sent = peer.sent[peer.posted % kSendDepth];
  const uint32_t count = make_pieces(peer, packet, pieces, sent, flags);
  ibv_send_wr& request = send_requests[index];
  request = {};
  request.wr_id = send_id(static_cast<uint32_t>(&peer - peers.get()), peer.posted);
  request.sg_list = pieces;
  request.num_sge = static_cast<int>(count);
  request.opcode = IBV_WR_SEND;
  request.send_flags = flags;
  if (peer.target.slots > 0) aim(peer, packet, request);
  ++peer.posted;
  (peer.first == nullptr ? peer.first : peer.last->next) = &request;
  peer.last = &request;
  return true;
}

// One call for all packets of a burst to a peer.
void RdmaQueue::State::post(Peer& peer) {
  if (options.signals_bursts) peer.last->send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(peer.queue_pair.get(), peer.first, &bad);
  peer.first = peer.last = nullptr;
  // What was not taken is freed with the queue pair.
  if (error != 0) end(peer);
}

size_t RdmaQueue::State::tx_burst(std::span<const TxPacket> packets, const Endpoint* to) {
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  std::array<Peer*, limits::kBurstPackets> touched;
  size_t touched_count = 0;
  size_t index = 0;
  for (; index < packets.size(); ++index) {
    Peer* peer = peer_at(to != nullptr ? *to : *packets[index].to);
    if (peer == nullptr) {
      counters.add(PortCounter::kNoQueuePair);
      continue;
    }
    const bool is_new = peer->first == nullptr;
    if (!make_request(*peer, packets[index], index)) break;
    if (is_new && peer->first != nullptr) touched[touched_count++] = peer;
  }
  for (size_t each = 0; each < touched_count; ++each) {
    if (touched[each]->first != nullptr) post(*touched[each]);
  }
  return index;
}

}  // namespace pbox::nic
