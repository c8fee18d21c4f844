#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// Completions of sent packets give the caller nothing. rx_burst reads at most this many batches of
// them before it returns.
constexpr uint32_t kPollsPerBurst = 4;

}  // namespace

// Returns the connected peer that the endpoint names, or nullptr if it is closed.
RdmaQueue::State::Peer* RdmaQueue::State::peer_at(const Endpoint& endpoint) {
  if (endpoint.port >= peer_count) return nullptr;
  Peer& peer = peers[endpoint.port];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady) return nullptr;
  return peer.endpoint.scope_id == endpoint.scope_id ? &peer : nullptr;
}

// Posts the buffers of the last burst to the device again, in one call.
void RdmaQueue::State::repost() {
  for (size_t first = 0; first < held.size();) {
    const size_t count = std::min<size_t>(held.size() - first, receive_requests.size());
    for (size_t index = 0; index < count; ++index) {
      const uint32_t buffer = held[first + index];
      PBOX_DCHECK(buffer < options.receive_slots);
      receive_pieces[index] = {reinterpret_cast<uint64_t>(receive_buffers + buffer * kBufferBytes),
                               limits::kPacketBytesMax, own_memory->lkey};
      receive_requests[index] = {buffer, index + 1 < count ? &receive_requests[index + 1] : nullptr,
                                 &receive_pieces[index], 1};
    }
    ibv_recv_wr* bad = nullptr;
    // The queue has room for all buffers. If the device refuses, it was removed.
    if (ibv_post_srq_recv(receive_queue.get(), receive_requests.data(), &bad) != 0) break;
    first += count;
  }
  held.clear();
  if (!held_landed.empty()) repost_landed();
}

// Posts one receive for each landing slot of the last burst again, in one call for consecutive
// slots of the same peer. The peer was connected when the slots were returned, and its queue pair
// exists at least until advance_closing_peers().
void RdmaQueue::State::repost_landed() {
  for (size_t first = 0; first < held_landed.size();) {
    const uint32_t owner = held_landed[first];
    PBOX_DCHECK(owner < peer_count && peers[owner].queue_pair);
    size_t count = 0;
    for (; first + count < held_landed.size() && held_landed[first + count] == owner &&
           count < receive_requests.size();
         ++count) {
      receive_requests[count] = {kLanded, nullptr, nullptr, 0};
      if (count > 0) receive_requests[count - 1].next = &receive_requests[count];
    }
    ibv_recv_wr* bad = nullptr;
    // The queue has room for all receives of the ring. A broken queue pair refuses them.
    ibv_post_recv(peers[owner].queue_pair.get(), receive_requests.data(), &bad);
    first += count;
  }
  held_landed.clear();
}

// Makes the polling thread's transitions of peers that close() and reap() have changed.
void RdmaQueue::State::advance_closing_peers() {
  PBOX_DCHECK(held.empty() && held_landed.empty());
  for (uint32_t index = 0; index < peer_count; ++index) {
    Peer& peer = peers[index];
    const auto at = peer.state.load(std::memory_order_acquire);
    if (at == PeerState::kClosing) {
      counters.add(PortCounter::kNoQueuePair, held_packets.drop(index));
      pending_changes.fetch_sub(1, std::memory_order_relaxed);
      peer.state.store(PeerState::kReleased, std::memory_order_release);
    } else if (at == PeerState::kDestroyed) {
      PBOX_DCHECK(!peer.queue_pair);
      free_sent(peer, peer.posted);
      pending_changes.fetch_sub(1, std::memory_order_relaxed);
      peer.state.store(PeerState::kFree, std::memory_order_release);
    }
  }
}

// Reads one batch of completions. Returns whether there were any.
bool RdmaQueue::State::poll_completions() {
  const int count =
      ibv_poll_cq(completion_queue.get(), static_cast<int>(completions.size()), completions.data());
  for (int index = 0; index < count; ++index) {
    const ibv_wc& completion = completions[static_cast<size_t>(index)];
    if ((completion.wr_id & kSendMark) != 0) {
      on_sent(completion);
    } else {
      PBOX_DCHECK(received.size() < received.capacity());  // else it would allocate
      received.push_back(completion);
    }
  }
  return count > 0;
}

// Takes a packet that a peer has written into its ring. The peer chooses the immediate, so only the
// next slot is read, and no byte beyond it. The peer may write to the slot at any time, so the
// packet is copied to buffer `place` of the burst: the bytes that are verified are those that are
// summed. Returns false if there is no packet for the caller.
bool RdmaQueue::State::take_landed(const ibv_wc& completion, RxPacket& packet, size_t place) {
  const auto index = numbers.find(completion.qp_num);
  if (!index) return false;
  PBOX_DCHECK(*index < peer_count);
  Peer& peer = peers[*index];
  if (completion.status != IBV_WC_SUCCESS) {
    mark_broken(peer);
    return false;
  }
  // If the peer is not connected or has no ring, the completion belongs to a queue pair that is
  // being closed, or to an earlier one with the same number.
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady || peer.ring_slots == 0) {
    return false;
  }
  held_landed.push_back(*index);
  const uint32_t slot = peer.ring_next;
  PBOX_DCHECK(slot < peer.ring_slots);
  PBOX_DCHECK(peer.ring_first + peer.ring_slots <= options.landing_slots);
  peer.ring_next = slot + 1 == peer.ring_slots ? 0 : slot + 1;
  std::optional<uint32_t> bytes;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    bytes = wire::landed_bytes(ntohl(completion.imm_data), slot, kBufferBytes);
  }
  if (!bytes) {
    counters.add(PortCounter::kBadImmediates);
    return false;
  }
  counters.add(PortCounter::kLandedPackets);
  PBOX_DCHECK(place < limits::kBurstPackets && *bytes <= kBufferBytes);
  std::byte* copy = landed_copies + place * kBufferBytes;
  std::memcpy(copy, landing + uint64_t{peer.ring_first + slot} * kBufferBytes, *bytes);
  packet.data = copy;
  packet.bytes = *bytes;
  packet.from = peer.endpoint;
  packet.to = kNoLocalAddress;  // the queue pair has one path
  packet.to_port = 0;
  return true;
}

// Takes a received packet. Returns false if there is none for the caller; the buffer is then posted
// again in the next burst.
bool RdmaQueue::State::take(const ibv_wc& completion, RxPacket& packet, size_t place) {
  if (completion.wr_id == kLanded) return take_landed(completion, packet, place);
  const auto buffer = static_cast<uint32_t>(completion.wr_id);
  PBOX_DCHECK(buffer < options.receive_slots && held.size() < options.receive_slots);
  held.push_back(buffer);
  const auto slot = numbers.find(completion.qp_num);
  if (!slot) return false;
  PBOX_DCHECK(*slot < peer_count);
  Peer& peer = peers[*slot];
  if (completion.status != IBV_WC_SUCCESS) {
    mark_broken(peer);
    return false;
  }
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady) return false;
  packet.data = receive_buffers + buffer * kBufferBytes;
  packet.bytes = completion.byte_len;
  packet.from = peer.endpoint;
  packet.to = kNoLocalAddress;  // the queue pair has one path
  packet.to_port = 0;
  return true;
}

size_t RdmaQueue::State::rx_burst(std::span<RxPacket> packets) {
  packets = packets.first(std::min<size_t>(packets.size(), limits::kBurstPackets));
  repost();
  if (pending_changes.load(std::memory_order_relaxed) != 0) advance_closing_peers();
  if (armed) {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel.get(), &queue, &context) == 0) {
      ibv_ack_cq_events(queue, 1);
      armed = false;
    }
  }
  size_t count = 0;
  for (uint32_t polls = 0; polls < kPollsPerBurst; ++polls) {
    while (received_next < received.size() && count < packets.size()) {
      if (take(received[received_next++], packets[count], count)) ++count;
    }
    PBOX_DCHECK(received_next <= received.size());
    received.erase(received.begin(), received.begin() + static_cast<ptrdiff_t>(received_next));
    received_next = 0;
    if (count > 0 || !poll_completions()) break;
  }
  send_held();
  return count;
}

// The caller must sleep on the result at once. Completions that arrive from now on make it
// readable. Completions that arrived before are read here; if packets are among them, the result is
// a descriptor that is readable already.
int RdmaQueue::State::event_fd() {
  if (!armed) armed = ibv_req_notify_cq(completion_queue.get(), 0) == 0;
  poll_completions();
  send_held();
  const bool has_work =
      received_next < received.size() || pending_changes.load(std::memory_order_relaxed) != 0;
  return has_work ? ready.get() : channel->fd;
}

}  // namespace pbox::nic
