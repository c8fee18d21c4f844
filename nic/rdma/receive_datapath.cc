#include <arpa/inet.h>

#include <algorithm>

#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// Completions of packets that were sent say nothing to the caller: so many bursts of them at most
// are read before rx_burst returns.
constexpr uint32_t kPollsPerBurst = 4;

}  // namespace

RdmaQueue::State::Peer* RdmaQueue::State::peer_at(const Endpoint& endpoint) {
  if (endpoint.port >= peer_count) return nullptr;
  Peer& peer = peers[endpoint.port];
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady) return nullptr;
  return peer.endpoint.scope_id == endpoint.scope_id ? &peer : nullptr;
}

// Buffers that were handed out in the last burst go back to the device, in one call.
void RdmaQueue::State::repost() {
  for (size_t first = 0; first < held.size();) {
    const size_t count = std::min<size_t>(held.size() - first, receive_requests.size());
    for (size_t index = 0; index < count; ++index) {
      const uint32_t buffer = held[first + index];
      receive_pieces[index] = {reinterpret_cast<uint64_t>(receive_buffers + buffer * kBufferBytes),
                               limits::kPacketBytesMax, own_memory->lkey};
      receive_requests[index] = {buffer, index + 1 < count ? &receive_requests[index + 1] : nullptr,
                                 &receive_pieces[index], 1};
    }
    ibv_recv_wr* bad = nullptr;
    // It has as many places as there are buffers; a device that refuses is gone.
    if (ibv_post_srq_recv(receive_queue.get(), receive_requests.data(), &bad) != 0) break;
    first += count;
  }
  held.clear();
  if (!held_landed.empty()) repost_landed();
}

// The same for slots in rings: a receive each, one call for neighbours of a peer. Whoever handed
// them out was connected then, and lasts at least until settle.
void RdmaQueue::State::repost_landed() {
  for (size_t first = 0; first < held_landed.size();) {
    const uint32_t owner = held_landed[first];
    size_t count = 0;
    for (; first + count < held_landed.size() && held_landed[first + count] == owner &&
           count < receive_requests.size();
         ++count) {
      receive_requests[count] = {kLanded, nullptr, nullptr, 0};
      if (count > 0) receive_requests[count - 1].next = &receive_requests[count];
    }
    ibv_recv_wr* bad = nullptr;
    // There is room for as many as there were; a queue pair that is broken takes none.
    ibv_post_recv(peers[owner].queue_pair.get(), receive_requests.data(), &bad);
    first += count;
  }
  held_landed.clear();
}

// What close and reap have changed.
void RdmaQueue::State::settle() {
  for (uint32_t index = 0; index < peer_count; ++index) {
    Peer& peer = peers[index];
    const auto at = peer.state.load(std::memory_order_acquire);
    if (at == PeerState::kClosing) {
      changes.fetch_sub(1, std::memory_order_relaxed);
      peer.state.store(PeerState::kQuiet, std::memory_order_release);
    } else if (at == PeerState::kDestroyed) {
      free_sent(peer, peer.posted);
      changes.fetch_sub(1, std::memory_order_relaxed);
      peer.state.store(PeerState::kFree, std::memory_order_release);
    }
  }
}

// True if there were any.
bool RdmaQueue::State::poll_completions() {
  const int count =
      ibv_poll_cq(completion_queue.get(), static_cast<int>(completions.size()), completions.data());
  for (int index = 0; index < count; ++index) {
    const ibv_wc& completion = completions[static_cast<size_t>(index)];
    if ((completion.wr_id & kSendMark) != 0) {
      on_sent(completion);
    } else {
      received.push_back(completion);
    }
  }
  return count > 0;
}

// What a peer has written into its ring. The immediate is the peer's word: only the slot that is
// next is read, and no byte beyond it.
bool RdmaQueue::State::take_landed(const ibv_wc& completion, RxPacket& packet) {
  const auto index = numbers.find(completion.qp_num);
  if (!index) return false;
  Peer& peer = peers[*index];
  if (completion.status != IBV_WC_SUCCESS) {
    end(peer);
    return false;
  }
  // Else of a queue pair that had the number before.
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady || peer.ring_slots == 0) {
    return false;
  }
  held_landed.push_back(*index);
  const uint32_t slot = peer.ring_next;
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
  packet.data = landing + uint64_t{peer.ring_first + slot} * kBufferBytes;
  packet.bytes = *bytes;
  packet.from = peer.endpoint;
  packet.to_port = 0;
  return true;
}

// False, and its buffer goes back, if there is nothing in it for anybody.
bool RdmaQueue::State::take(const ibv_wc& completion, RxPacket& packet) {
  if (completion.wr_id == kLanded) return take_landed(completion, packet);
  const auto buffer = static_cast<uint32_t>(completion.wr_id);
  held.push_back(buffer);
  const auto slot = numbers.find(completion.qp_num);
  if (!slot) return false;
  Peer& peer = peers[*slot];
  if (completion.status != IBV_WC_SUCCESS) {
    end(peer);
    return false;
  }
  if (peer.state.load(std::memory_order_acquire) != PeerState::kReady) return false;
  packet.data = receive_buffers + buffer * kBufferBytes;
  packet.bytes = completion.byte_len;
  packet.from = peer.endpoint;
  packet.to_port = 0;
  return true;
}

size_t RdmaQueue::State::rx_burst(std::span<RxPacket> packets) {
  repost();
  if (changes.load(std::memory_order_relaxed) != 0) settle();
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
      if (take(received[received_next++], packets[count])) ++count;
    }
    received.erase(received.begin(), received.begin() + static_cast<ptrdiff_t>(received_next));
    received_next = 0;
    if (count > 0 || !poll_completions()) break;
  }
  return count;
}

// Asked for just before its caller sleeps on it: completions that come from here on make it
// readable, and those that came before are there already.
int RdmaQueue::State::event_fd() {
  if (!armed) armed = ibv_req_notify_cq(completion_queue.get(), 0) == 0;
  poll_completions();
  const bool has_work =
      received_next < received.size() || changes.load(std::memory_order_relaxed) != 0;
  return has_work ? ready_fd : channel->fd;
}

}  // namespace pbox::nic
