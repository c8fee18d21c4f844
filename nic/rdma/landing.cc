// Rings of landing slots: which peer has which, and what lets that peer's queue pair, and no other,
// write there.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/rdma/queue_state.h"

namespace pbox::nic {
namespace {

// More than a worker's window has packets; less than that a ring slows its peer down, and from some
// number on sending does better.
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
                                            " has no memory windows of type 2, which rdma.mode = "
                                            "write_imm takes; set rdma.mode = send"};
}

// For a peer whose slot is free.
void RdmaQueue::State::take_ring(Peer& peer, uint32_t slots_wanted) {
  peer.ring_slots = 0;
  std::optional<uint32_t> first;
  uint32_t count = std::min(slots_wanted, kRingSlotsMax);
  for (; !first && count >= kRingSlotsMin; count /= 2) first = landing_free.take(count);
  if (!first) return;
  count = landing_free.length(*first);
  std::byte* slots = landing + *first * kBufferBytes;
  const uint64_t bytes = count * kBufferBytes;
  // A region of its own: Soft-RoCE holds writes to the window's region, not to the window. It gives
  // no remote right; the window does, to one queue pair.
  peer.ring_memory = MemoryRegion(
      ibv_reg_mr(domain->get(), slots, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
  if (peer.ring_memory) peer.window = MemoryWindow(ibv_alloc_mw(domain->get(), IBV_MW_TYPE_2));
  if (!peer.window) {
    peer.ring_memory.reset();
    return landing_free.give_back(*first);
  }
  // Whoever had the slots before has left nothing there for this peer to pass off as its own.
  std::memset(slots, 0, bytes);
  peer.ring_first = *first;
  peer.ring_slots = count;
  peer.ring_next = 0;
}

// Nobody writes there any more. Its queue pair is not destroyed yet.
void RdmaQueue::State::release_ring(Peer& peer) {
  if (peer.ring_slots == 0) return;
  peer.window.reset();
  peer.ring_memory.reset();
  landing_free.give_back(peer.ring_first);
  peer.ring_slots = 0;
}

wire::LandingRing RdmaQueue::State::ring_of(const Peer& peer) const {
  if (peer.ring_slots == 0) return {};
  return {.address = reinterpret_cast<uint64_t>(landing + peer.ring_first * kBufferBytes),
          .key = ibv_inc_rkey(peer.window->rkey),  // that it gets when it is bound
          .slots = peer.ring_slots,
          .slot_bytes = kBufferBytes};
}

// Lets the peer write to its ring: as many receives as there are slots, less the one that may be
// written meanwhile, and the window. The device does the latter by itself: a write that came before
// it would break the connection; but the peer is yet to be told.
Status RdmaQueue::State::open_ring(Peer& peer) {
  if (peer.ring_slots == 0) return ok_status();
  ibv_recv_wr receive{};
  receive.wr_id = kLanded;
  for (uint32_t index = 0; index + 1 < peer.ring_slots; ++index) {
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(peer.queue_pair.get(), &receive, &bad); error != 0) {
      return verbs_error(*device, "takes no receives for a ring", error);
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
  return verbs_error(*device, "binds no memory window", error);
}

}  // namespace pbox::nic
