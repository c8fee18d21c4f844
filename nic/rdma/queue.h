// Packets over reliable connections of an RDMA device: one completion queue, one shared receive
// queue, and a queue pair for each peer. A packet is one SEND of header, payload and tag, which
// lands in a buffer that the receiver has posted: peers are given no key to anybody's memory. Where
// the receiver has landing slots, a peer that wants some gets a ring of them, and writes its
// packets there (wire/landing.h); the README says what keeps it to its own.
//
// All buffers are one block on one NUMA node, registered once. Payloads that lie whole in memory
// made known by add_memory leave from there; small packets leave inline; others are copied into a
// buffer first, and counted.
//
// A queue pair that breaks (peer gone, retries exceeded) stays broken: packets to it are counted
// and dropped, until its owner connects a new one.
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
  uint32_t receive_slots = 1024;  // buffers that are posted, of the largest packet each
  uint32_t staging_slots = 256;   // the same, to send from
  uint32_t landing_slots = 0;     // buffers that peers may write to, in rings
  uint32_t peers_max = 512;       // at once; fewer where the device's completion queue is short
  // For queues that share registered memory; else each has a domain of its own.
  std::shared_ptr<ProtectionDomain> domain = {};
  uint32_t payload_regions_max = limits::kJobsMax;
  // Whoever adds and removes memory while packets go has to hear soon that a payload was read: the
  // last packet of each burst to a peer is signalled.
  bool signals_bursts = false;
};

// Bytes that a queue of these options locks and registers. Pure.
uint64_t rdma_queue_bytes(const RdmaQueueOptions& options);

// Threads: rx_burst, tx_burst and event_fd belong to the polling thread; prepare, complete, close,
// reap, add_memory and remove_memory to the control thread, which may be the same one.
class RdmaQueue {
 public:
  static Result<RdmaQueue> open(const RdmaQueueOptions& options);
  RdmaQueue(RdmaQueue&&) noexcept;
  RdmaQueue& operator=(RdmaQueue&&) noexcept;
  ~RdmaQueue();

  // As the contract of ports says; `from` of what is received is where its sender is answered.
  size_t rx_burst(std::span<RxPacket> packets);
  // With `to` all packets go there, whatever they say.
  size_t tx_burst(std::span<const TxPacket> packets, const Endpoint* to = nullptr);
  int event_fd();
  const PortCounters& counters() const;
  PortCounters& counters();
  uint32_t receive_slots() const;
  const RdmaDevice& device() const;

  // A new queue pair of this owner, which receives nothing yet. With `landing_slots_wanted` it has
  // a ring of as many, or of fewer, or, where too few are left, none.
  struct Prepared {
    Endpoint endpoint;  // for TxPacket::to, once it is complete
    wire::QueuePairAddress own;
  };
  Result<Prepared> prepare(uint64_t owner, uint32_t landing_slots_wanted = 0);
  // Connects it: from here on it receives and sends; into the peer's ring, if it names one.
  Status complete(const Endpoint& endpoint, const wire::QueuePairAddress& peer);
  // All of the owner's are void; freed by reap once the polling thread has let go of them. False if
  // there were none.
  bool close(uint64_t owner);
  // How many closed ones the polling thread still has to do with: it settles that in rx_burst.
  size_t reap();
  // Control thread: what its device has said. Queue pairs that this ends are broken.
  void on_event(const DeviceEvent& event);
  // True once an error has ended it; nothing comes or goes there any more.
  bool is_broken(const Endpoint& endpoint) const;
  uint32_t open_queue_pairs() const;

  // Payloads from there leave without a copy. Before the first does.
  Status add_memory(const std::byte* memory, size_t bytes);
  // The same of memory that the caller has registered in options.domain and keeps so until
  // remove_memory; or, with PayloadMemory::kRefused, of memory that could not be, which is to be
  // told apart. False if there is no place left: payloads are copied.
  bool add_memory(const std::byte* memory, size_t bytes, uint64_t key);
  // Once no new packet is made from there, or on the polling thread. False while a packet from
  // there is under way: then it stays registered, though new packets are copied.
  bool remove_memory(const std::byte* memory);
  // Of the packets that were copied, those from refused memory. The polling thread.
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

// Whether an endpoint names a queue pair: an address that no IP packet comes from.
bool is_queue_pair(const Endpoint& endpoint);

}  // namespace pbox::nic
