// Behind an RdmaQueue: its tables, allocated once, and the two halves of the data path. Private to
// nic/rdma.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <vector>

#include "nic/payload_memory.h"
#include "nic/rdma/memory.h"
#include "nic/rdma/queue.h"
#include "nic/rdma/queue_pair_table.h"
#include "nic/rdma/slot_ranges.h"

namespace pbox::nic {

inline constexpr uint32_t kSendDepth = 256;  // work requests of a queue pair under way
inline constexpr uint32_t kSignalInterval = 32;
inline constexpr uint32_t kInlineBytes = 128;  // a PULL, a STATUS, a GRANT
inline constexpr uint32_t kHeadBytes = 64;     // header and tag of a packet that is gathered
inline constexpr uint32_t kSendPieces = 3;
inline constexpr size_t kBufferBytes = align_up(limits::kPacketBytesMax, kCacheLineBytes);
// Work requests' names: of receives the buffer, below 2^32, or kLanded, the same for all; of sends
// kSendMark, the peer's slot and the sequence.
inline constexpr uint64_t kSendMark = uint64_t{1} << 63;
inline constexpr uint32_t kSequenceBits = 32;
inline constexpr uint64_t kLanded = uint64_t{1} << 62;
static_assert(limits::kHeaderBytes + limits::kTagBytes <= kHeadBytes);
static_assert(kSendDepth % kSignalInterval == 0);

struct RdmaQueue::State {
  // A packet that was posted and whose completion has not been seen.
  struct Sent {
    static constexpr uint32_t kNoStaging = UINT32_MAX;
    uint32_t staging = kNoStaging;
    PayloadMemory::Region* region = nullptr;
  };

  // Of the two threads the control thread moves it along the right-hand states, the polling thread
  // along the left: kFree -> kPrepared -> kReady -> kClosing, kClosing -> kQuiet (polling thread),
  // kQuiet -> kDestroyed, kDestroyed -> kFree (polling thread).
  enum class PeerState : uint32_t { kFree, kPrepared, kReady, kClosing, kQuiet, kDestroyed };
  struct Peer {
    std::atomic<PeerState> state{PeerState::kFree};
    std::atomic<bool> broken{false};
    std::atomic<uint32_t> number{0};  // of the queue pair that has the slot, or had it last
    uint64_t owner = 0;               // control thread's
    QueuePair queue_pair;             // control thread's to make and destroy
    // The ring that it writes to: landing slots from ring_first on; ring_slots 0: it has none. Set
    // while the polling thread has nothing to do with the peer.
    MemoryRegion ring_memory;
    MemoryWindow window;
    uint32_t ring_first = 0;
    uint32_t ring_slots = 0;
    wire::LandingRing target;  // the peer's, that is written to; set likewise
    wire::QueuePairAddress own;
    Endpoint endpoint;
    // The polling thread's.
    uint64_t posted = 0;     // packets, of which the newest kSendDepth at most are under way
    uint64_t completed = 0;  // packets, oldest first
    uint64_t full_since_ns = 0;
    uint32_t ring_next = 0;    // the slot that is written next
    uint32_t target_next = 0;  // the same of the peer's
    std::array<Sent, kSendDepth> sent;
    ibv_send_wr* first = nullptr;  // chain that is being made
    ibv_send_wr* last = nullptr;
  };

  explicit State(const RdmaQueueOptions& options);
  Status open();
  Status register_memory();
  Status post_all_buffers();

  // landing.cc: control thread
  Status check_landing() const;
  void take_ring(Peer& peer, uint32_t slots_wanted);
  wire::LandingRing ring_of(const Peer& peer) const;
  void release_ring(Peer& peer);
  Status open_ring(Peer& peer);

  // receive_datapath.cc
  size_t rx_burst(std::span<RxPacket> packets);
  int event_fd();
  void settle();
  bool poll_completions();

  // transmit_datapath.cc
  size_t tx_burst(std::span<const TxPacket> packets, const Endpoint* to);
  void on_sent(const ibv_wc& completion);

  Peer* peer_at(const Endpoint& endpoint);
  std::byte* head_of(const Peer& peer, uint64_t sequence) {
    const auto slot = static_cast<uint64_t>(&peer - peers.get());
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
  SlotRanges landing_free;  // control thread's

  // In the order in which they stand on each other.
  std::shared_ptr<ProtectionDomain> domain;
  CompletionChannel channel;
  CompletionQueue completion_queue;
  SharedReceiveQueue receive_queue;
  MemoryRegion own_memory;
  std::map<const std::byte*, MemoryRegion> payload_regions;  // control thread's
  PayloadMemory payload_memory;

  uint32_t peer_count = 0;  // slots
  std::unique_ptr<Peer[]> peers;
  QueuePairTable numbers;
  std::atomic<uint32_t> changes{0};  // peers in kClosing or kDestroyed

  // The polling thread's.
  int ready_fd = -1;  // always readable: for when packets wait already
  std::array<ibv_wc, limits::kBurstPackets> completions;
  std::vector<ibv_wc> received;  // completions not yet handed out, from received_next on
  size_t received_next = 0;
  bool armed = false;
  std::vector<uint32_t> held;         // buffers of the burst that was handed out last
  std::vector<uint32_t> held_landed;  // the same of slots in rings: each peer's index
  std::vector<ibv_recv_wr> receive_requests;
  std::vector<ibv_sge> receive_pieces;
  std::vector<uint32_t> staging_free;
  uint64_t refused_packets = 0;
  std::array<ibv_send_wr, limits::kBurstPackets> send_requests;
  std::array<ibv_sge, kSendPieces * limits::kBurstPackets> send_pieces;

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

 private:
  void repost();
  void repost_landed();
  bool take_landed(const ibv_wc& completion, RxPacket& packet);
  bool take(const ibv_wc& completion, RxPacket& packet);
  void end(Peer& peer);
  void free_sent(Peer& peer, uint64_t until);
  enum class Room { kYes, kNo, kNever };
  Room make_room(Peer& peer, bool needs_staging);
  PayloadMemory::Region* readable(const TxPacket& packet);
  bool make_request(Peer& peer, const TxPacket& packet, size_t index);
  uint32_t make_pieces(Peer& peer, const TxPacket& packet, ibv_sge* pieces, Sent& sent,
                       unsigned& flags);
  static void aim(Peer& peer, const TxPacket& packet, ibv_send_wr& request);
  void post(Peer& peer);
};

}  // namespace pbox::nic
