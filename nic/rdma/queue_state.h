// The state of an RdmaQueue: its tables, allocated once, and the functions of the data path.
// Private to nic/rdma.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "nic/payload_memory.h"
#include "nic/rdma/held_packets.h"
#include "nic/rdma/memory.h"
#include "nic/rdma/queue.h"
#include "nic/rdma/queue_pair_table.h"
#include "nic/rdma/slot_ranges.h"

namespace pbox::nic {

inline constexpr uint32_t kSendDepth = 256;      // work requests of a queue pair in flight
inline constexpr uint32_t kSignalInterval = 32;  // every 32nd packet requests a completion
inline constexpr uint32_t kHeadBytes = 64;       // room for header and tag of a gathered packet
inline constexpr uint32_t kSendPieces = 3;
inline constexpr size_t kBufferBytes = align_up(limits::kPacketBytesMax, kCacheLineBytes);
// Identifiers of work requests (wr_id). Receives: the index of the buffer, below 2^32, or kLanded
// for all landing slots. Sends: kSendMark with the peer's slot and the packet's sequence.
inline constexpr uint64_t kSendMark = uint64_t{1} << 63;
inline constexpr uint32_t kSequenceBits = 32;
inline constexpr uint64_t kLanded = uint64_t{1} << 62;
static_assert(limits::kHeaderBytes + limits::kTagBytes <= kHeadBytes);
static_assert(kSendDepth % kSignalInterval == 0);

struct RdmaQueue::State {
  // A packet that was posted and has not completed.
  struct Sent {
    static constexpr uint32_t kNoStaging = UINT32_MAX;
    uint32_t staging = kNoStaging;            // its staging buffer
    PayloadMemory::Region* region = nullptr;  // the region of a payload that is sent in place
  };

  // The life of a peer's slot, and the thread that makes each transition:
  //   kFree -> kPrepared     control thread: the queue pair exists (prepare)
  //   kPrepared -> kReady    control thread: it is connected (complete)
  //   either -> kClosing     control thread: it has failed for good (close)
  //   kClosing -> kReleased  polling thread: it does not use the queue pair any more
  //   kReleased -> kDestroyed  control thread: the queue pair and its ring are freed (reap)
  //   kDestroyed -> kFree    polling thread: the packets in flight are freed
  enum class PeerState : uint32_t { kFree, kPrepared, kReady, kClosing, kReleased, kDestroyed };
  struct Peer {
    std::atomic<PeerState> state{PeerState::kFree};
    std::atomic<bool> broken{false};
    std::atomic<uint32_t> number{0};  // number of the current or last queue pair in this slot
    uint64_t owner = 0;               // control thread only
    QueuePair queue_pair;             // created and destroyed by the control thread
    // The ring that the peer writes to: landing slots [ring_first, ring_first + ring_slots), none
    // if ring_slots is 0. Set only while the polling thread does not use the peer.
    MemoryRegion ring_memory;
    MemoryWindow window;
    uint32_t ring_first = 0;
    uint32_t ring_slots = 0;
    wire::LandingRing target;  // the peer's ring, which we write to; set like the ring above
    wire::QueuePairAddress own;
    Endpoint endpoint;
    // Polling thread only.
    uint64_t posted = 0;         // packets since the start; posted - completed <= kSendDepth
    uint64_t completed = 0;      // packets since the start, oldest first
    uint32_t staged = 0;         // staging buffers of packets in flight
    uint64_t full_since_ns = 0;  // when a packet found no room, after the last completion; 0: none
    uint32_t ring_next = 0;      // slot of the ring that the peer writes next
    uint32_t target_next = 0;    // slot of the target that we write next
    std::array<Sent, kSendDepth> sent;
    ibv_send_wr* first = nullptr;  // chain of requests to post
    ibv_send_wr* last = nullptr;
  };

  explicit State(const RdmaQueueOptions& options);
  Status open();
  Status register_memory();
  Status post_all_buffers();

  // landing.cc: control thread
  Status check_landing() const;
  void allocate_ring(Peer& peer, uint32_t slots_wanted);
  wire::LandingRing ring_of(const Peer& peer) const;
  void release_ring(Peer& peer);
  Status open_ring(Peer& peer);

  // receive_datapath.cc
  size_t rx_burst(std::span<RxPacket> packets);
  int event_fd();
  void advance_closing_peers();
  bool poll_completions();

  // transmit_datapath.cc
  size_t tx_burst(std::span<const TxPacket> packets, const Endpoint* to);
  void send_held();
  void on_sent(const ibv_wc& completion);

  Peer* peer_at(const Endpoint& endpoint);
  std::byte* head_of(const Peer& peer, uint64_t sequence) {
    const auto slot = static_cast<uint64_t>(&peer - peers.get());
    PBOX_DCHECK(slot < peer_count);
    return heads + (slot * kSendDepth + sequence % kSendDepth) * kHeadBytes;
  }

  RdmaQueueOptions options;
  std::shared_ptr<RdmaDevice> device;
  PortCounters counters;
  NumaArena arena;
  std::byte* receive_buffers = nullptr;
  std::byte* staging_buffers = nullptr;
  std::byte* heads = nullptr;
  std::byte* landing = nullptr;
  std::byte* landed_copies = nullptr;  // copies of the packets of a burst that lay in slots
  SlotRanges landing_free;             // control thread only

  // Each of these objects depends on the ones before it.
  std::shared_ptr<ProtectionDomain> domain;
  CompletionChannel channel;
  CompletionQueue completion_queue;
  SharedReceiveQueue receive_queue;
  MemoryRegion own_memory;
  std::map<const std::byte*, MemoryRegion> payload_regions;  // control thread only
  PayloadMemory payload_memory;

  uint32_t peer_count = 0;  // length of `peers`
  std::unique_ptr<Peer[]> peers;
  QueuePairTable numbers;
  std::atomic<uint32_t> pending_changes{0};  // peers in kClosing or kDestroyed

  // Polling thread only.
  Descriptor ready;  // always readable; event_fd() returns it if packets wait already
  std::array<ibv_wc, limits::kBurstPackets> completions;
  std::vector<ibv_wc>
      received;  // completed receives; those from received_next on are not returned yet
  size_t received_next = 0;
  bool armed = false;                 // a notification was requested and has not arrived
  std::vector<uint32_t> held;         // receive buffers of the last burst
  std::vector<uint32_t> held_landed;  // landing slots of the last burst: the peer's index for each
  std::vector<ibv_recv_wr> receive_requests;
  std::vector<ibv_sge> receive_pieces;
  std::vector<uint32_t> staging_free;
  HeldPackets held_packets;
  bool has_progress = false;  // since send_held(): packets were sent, or a peer has broken
  uint64_t refused_packets = 0;
  std::array<ibv_send_wr, limits::kBurstPackets> send_requests;
  std::array<ibv_sge, kSendPieces * limits::kBurstPackets> send_pieces;

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

 private:
  void repost();
  void repost_landed();
  bool take_landed(const ibv_wc& completion, RxPacket& packet, size_t place);
  bool take(const ibv_wc& completion, RxPacket& packet, size_t place);
  void mark_broken(Peer& peer);
  void free_sent(Peer& peer, uint64_t until);
  // kFull: the peer has used its share, and its packets may be held. kNo: the caller must wait, for
  // the peer or for staging buffers, which all peers share. kNever: the peer is broken or stuck.
  enum class Room { kYes, kFull, kNo, kNever };
  Room make_room(Peer& peer, bool needs_staging);
  PayloadMemory::Region* registered_region(const TxPacket& packet);
  bool make_request(Peer& peer, const TxPacket& packet, size_t index);
  void append_request(Peer& peer, const TxPacket& packet, PayloadMemory::Region* region,
                      size_t index);
  uint32_t make_pieces(Peer& peer, const TxPacket& packet, PayloadMemory::Region* region,
                       ibv_sge* pieces, Sent& sent, unsigned& flags);
  uint32_t slot_of(const Peer& peer) const {
    PBOX_DCHECK(&peer >= peers.get() && &peer < peers.get() + peer_count);
    return static_cast<uint32_t>(&peer - peers.get());
  }
  static void write_to_ring(Peer& peer, const TxPacket& packet, ibv_send_wr& request);
  void post(Peer& peer);
};

}  // namespace pbox::nic
