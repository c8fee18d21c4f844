// Rings of landing slots: assigning them to peers, and the memory windows that let only the queue
// pair of that peer write there.
//
// An honest peer writes no slot that is being read. A ring of n slots has n - 1 receives, without
// buffers, in a receive queue of its own. Each completed write takes one receive. The receive is
// posted again once the pipeline has released the slot. The device executes writes in order, so at
// most n - 1 slots are held while one is written. Without a receive the worker's device waits
// (RNR); the worker's credit makes that rare.
//
// A malicious worker is confined to its ring. The ring is a region without remote rights,
// registered when the worker connects. A type 2 memory window on it, write only, is bound to the
// worker's queue pair. Its key is invalid on every other queue pair, and nothing beyond the ring
// can be written. A packet whose immediate names a slot other than the next, or too large a length,
// is dropped and counted. A worker that writes into its own ring at the wrong time damages only its
// own packets, and so only its own job. It cannot change a packet that was received: take_landed()
// copies it, so that what is verified is what is summed. Slots are cleared before another job gets
// them.
//
// Jobs do not have protection domains of their own. A queue pair may use only regions of its own
// domain (Soft-RoCE enforces that for receive buffers too, and for windows: InfiniBand
// specification C10-72), but all peers share the regions and header blocks that results are sent
// from. Those would have to be registered once more for each job. A window is the tighter bound.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// The largest ring has more slots than a worker's window has packets; a smaller ring slows its peer
// down. Below the minimum, SEND is faster than a ring.
constexpr uint32_t kRingSlotsMax = 256;
constexpr uint32_t kRingSlotsMin = 4;
static_assert(kRingSlotsMin >= wire::kLandingSlotsMin && kRingSlotsMax <= wire::kLandingSlotsMax);

}  // namespace

Status RdmaQueue::State::check_landing() const {
  constexpr unsigned kWindows = IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  if (options.landing_slots == 0 || (device->limits().device_cap_flags & kWindows) != 0) {
    return ok_status();
  }
  return Error{ErrorCode::kUnavailable, "RDMA device " + device->name() +
                                            " does not support type 2 memory windows, which "
                                            "rdma.mode = write_imm needs; set rdma.mode = send"};
}

// Assigns a ring to a peer that is kFree, with at most `slots_wanted` slots; none if too few are
// left.
void RdmaQueue::State::allocate_ring(Peer& peer, uint32_t slots_wanted) {
  PBOX_CHECK(peer.ring_slots == 0 && !peer.window && !peer.ring_memory);
  std::optional<uint32_t> first;
  uint32_t count = std::min(slots_wanted, kRingSlotsMax);
  for (; !first && count >= kRingSlotsMin; count /= 2) first = landing_free.take(count);
  if (!first) return;
  count = landing_free.length(*first);
  std::byte* slots = landing + *first * kBufferBytes;
  const uint64_t bytes = count * kBufferBytes;
  // The ring has its own region because Soft-RoCE restricts writes to the window's region, not to
  // the window. The region gives no remote right; the window gives it to one queue pair.
  peer.ring_memory = MemoryRegion(
      ibv_reg_mr(domain->get(), slots, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  if (peer.ring_memory) peer.window = MemoryWindow(ibv_alloc_mw(domain->get(), IBV_MW_TYPE_2));
  if (!peer.window) {
    peer.ring_memory.reset();
    return landing_free.give_back(*first);
  }
  PBOX_CHECK(*first + count <= options.landing_slots);
  // Clear the slots, so that this peer cannot present packets of their previous owner as its own.
  std::memset(slots, 0, bytes);
  peer.ring_first = *first;
  peer.ring_slots = count;
  peer.ring_next = 0;
}

// Releases the ring of a peer whose queue pair has failed but is not destroyed yet, so no one
// writes to it any more.
void RdmaQueue::State::release_ring(Peer& peer) {
  PBOX_CHECK(peer.state.load(std::memory_order_relaxed) != PeerState::kReady);
  if (peer.ring_slots == 0) return;
  peer.window.reset();
  peer.ring_memory.reset();
  landing_free.give_back(peer.ring_first);
  peer.ring_slots = 0;
}

wire::LandingRing RdmaQueue::State::ring_of(const Peer& peer) const {
  if (peer.ring_slots == 0) return {};
  return {.address = reinterpret_cast<uint64_t>(landing + peer.ring_first * kBufferBytes),
          .key = ibv_inc_rkey(peer.window->rkey),  // the key that binding will give it
          .slots = peer.ring_slots,
          .slot_bytes = kBufferBytes};
}

// Lets the peer write to its ring: posts one receive fewer than the ring has slots, because one
// slot may be written meanwhile, and binds the window. The device binds asynchronously. A write
// before that would break the connection, but the peer has not been told the ring's address yet.
Status RdmaQueue::State::open_ring(Peer& peer) {
  if (peer.ring_slots == 0) return ok_status();
  PBOX_CHECK(peer.own.landing.slots == peer.ring_slots && peer.window);
  ibv_recv_wr receive{};
  receive.wr_id = kLanded;
  for (uint32_t index = 0; index + 1 < peer.ring_slots; ++index) {
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(peer.queue_pair.get(), &receive, &bad); error != 0) {
      return verbs_error(*device, "cannot post the receives of a landing ring", error);
    }
  }
  ibv_send_wr bind{};
  bind.wr_id = kSendMark | static_cast<uint64_t>(&peer - peers.get()) << kSequenceBits;
  bind.opcode = IBV_WR_BIND_MW;
  bind.bind_mw.mw = peer.window.get();
  bind.bind_mw.rkey = peer.own.landing.key;
  bind.bind_mw.bind_info = {.mr = peer.ring_memory.get(),
                            .addr = peer.own.landing.address,
                            .length = uint64_t{peer.ring_slots} * kBufferBytes,
                            .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(peer.queue_pair.get(), &bind, &bad);
  if (error == 0) return ok_status();
  return verbs_error(*device, "cannot bind a memory window", error);
}

}  // namespace pbox::nic
