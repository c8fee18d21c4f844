// Packets over reliable connections of an RDMA device: one completion queue, one shared receive
// queue, and one queue pair for each peer. A packet is one SEND of header, payload and tag. It
// lands in a buffer that the receiver has posted, so peers need no key to any memory. If the
// receiver has landing slots (wire/landing.h), a peer may ask for a ring of them and write its
// packets there. landing.cc explains what confines a peer to its own ring.
//
// All buffers are one block on one NUMA node, registered once. A payload that lies completely in
// memory registered by add_memory is sent in place. Small packets are sent inline. Other packets
// are copied into a staging buffer and counted.
//
// A queue pair that breaks (the peer disconnected, retries exhausted) stays broken. Packets to it
// are counted and dropped until its owner connects a new one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/limits.h"
#include "base/numa_arena.h"
#include "nic/port.h"
#include "nic/rdma/device.h"
#include "nic/wire/queue_pair.h"

namespace pbox::nic {

struct RdmaQueueOptions {
  std::shared_ptr<RdmaDevice> device;
  int numa_node = kAnyNumaNode;
  Hugepages hugepages = Hugepages::kIfFree;
  uint32_t receive_slots = 1024;  // posted receive buffers, each for the largest packet
  uint32_t staging_slots = 256;   // buffers of the same size for copied packets
  uint32_t landing_slots = 0;     // buffers of the same size that peers may write to, in rings
  uint32_t peers_max = 512;       // queue pairs; fewer if the device's completion queues are small
  // The domain that queues with shared registered memory have in common. If it is empty, the queue
  // creates its own.
  std::shared_ptr<ProtectionDomain> domain = {};
  uint32_t payload_regions_max = limits::kShardsPerPipelineMax;
  // How many packets may wait for peers whose send queue is full, while packets to other peers
  // leave. With 0, which suits an owner with one peer, tx_burst takes no packet behind one that has
  // to wait.
  uint32_t held_packets_max = 0;
  // Requests a completion for the last packet of each burst to a peer. An owner that adds and
  // removes memory while packets are sent needs this, to learn soon that a payload has been read.
  bool signals_bursts = false;
};

// Returns how many bytes of memory a queue with these options takes. The queue registers, and so
// locks, all of them except the copies of packets from landing slots. Pure.
uint64_t rdma_queue_bytes(const RdmaQueueOptions& options);

// Threads: rx_burst, tx_burst, event_fd and refused_packets belong to the polling thread. The other
// functions belong to the control thread, which may be the same thread.
class RdmaQueue {
 public:
  static Result<RdmaQueue> open(const RdmaQueueOptions& options);
  RdmaQueue(RdmaQueue&&) noexcept;
  RdmaQueue& operator=(RdmaQueue&&) noexcept;
  ~RdmaQueue();

  // Does what port.h says. `from` of a received packet names the queue pair; answers may be sent to
  // it.
  size_t rx_burst(std::span<RxPacket> packets);
  // If `to` is given, all packets go to that queue pair and TxPacket::to is ignored.
  size_t tx_burst(std::span<const TxPacket> packets, const Endpoint* to = nullptr);
  int event_fd();
  const PortCounters& counters() const;
  PortCounters& counters();
  uint32_t receive_slots() const;
  const RdmaDevice& device() const;

  // Creates a queue pair of this owner, which receives nothing yet. It gets a ring of at most
  // `landing_slots_wanted` landing slots, or none if too few are left.
  struct Prepared {
    Endpoint endpoint;           // for complete(), then for TxPacket::to
    wire::QueuePairAddress own;  // this end's address, for the peer
  };
  Result<Prepared> prepare(uint64_t owner, uint32_t landing_slots_wanted = 0);
  // Connects a prepared queue pair to its peer; from now on it receives and sends. If the peer's
  // address has a ring, packets are written there. After an error call close().
  Status complete(const Endpoint& endpoint, const wire::QueuePairAddress& peer);
  // Closes all queue pairs of the owner. reap() frees them once the polling thread has released
  // them. Returns false if there were none.
  bool close(uint64_t owner);
  // Frees closed queue pairs that the polling thread has released. Returns how many closed ones are
  // not completely freed: the polling thread releases them in rx_burst, so call again later.
  size_t reap();
  // Marks as broken each queue pair that this event of the device has ended.
  void on_event(const DeviceEvent& event);
  // Returns whether an error has ended the queue pair; it then neither sends nor receives.
  bool is_broken(const Endpoint& endpoint) const;
  uint32_t open_queue_pairs() const;  // queue pairs not completely freed

  // Registers memory whose payloads are sent in place. Call it before the first payload is sent. If
  // all places for regions are taken, it succeeds and payloads are copied.
  Status add_memory(const std::byte* memory, size_t bytes);
  // Does the same as the overload above for memory that the caller has registered in options.domain
  // and keeps registered until remove_memory has returned true; `key` is its lkey. With
  // PayloadMemory::kRefused, notes memory that could not be registered, so that refused_packets()
  // counts its packets. Returns false if all places are taken; payloads are then copied.
  bool add_memory(const std::byte* memory, size_t bytes, uint64_t key);
  // Revokes add_memory(). Call it after the last packet with a payload there, or on the polling
  // thread. Returns false while such a packet is in flight: the memory stays registered, new
  // packets are copied, and the caller must call again.
  bool remove_memory(const std::byte* memory);
  // Returns how many packets were copied because their payload lies in refused memory.
  uint64_t refused_packets() const;

  struct State;

 private:
  explicit RdmaQueue(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

static_assert(requires(RdmaQueue queue, std::span<RxPacket> rx, std::span<const TxPacket> tx) {
  queue.rx_burst(rx);
  queue.tx_burst(tx);
});

// Returns whether an endpoint names a queue pair: its address is one that no IP packet comes from.
bool is_queue_pair(const Endpoint& endpoint);

}  // namespace pbox::nic
