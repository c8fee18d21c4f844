// A network inside the process with a seeded fault plan, and ports on it. It is part of every
// build, so tests run product code over it exactly as over a socket. The caller sets the time
// (advance_to), so a run is repeatable.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/rng.h"
#include "nic/port.h"

namespace pbox::nic {

// Faults to inject. Each probability is in [0, 1] and drawn independently for each packet.
struct FaultPlan {
  uint64_t seed = 1;
  double loss = 0;
  double duplication = 0;
  double reordering = 0;      // the packet is delayed by a random time in [0, delay_max_ns]
  uint64_t delay_ns = 0;      // delay of every packet
  uint64_t delay_max_ns = 0;  // largest additional delay of a reordered packet
  double truncation = 0;
  double bit_flip = 0;  // flips one bit anywhere in the packet
};

// Packets sent into the network, and how many of them suffered each fault.
struct FaultCounts {
  uint64_t sent = 0, lost = 0, duplicated = 0, reordered = 0, truncated = 0, flipped = 0;
};

// Owns the packets in flight. Thread-safe: ports of one network may belong to different threads.
class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(const FaultPlan& plan) : plan_(plan), rng_(plan.seed) {}

  // Sets the time: packets due at or before now_ns can be received from now on. Time never goes
  // back.
  void advance_to(uint64_t now_ns);
  // Returns when the next packet becomes due; UINT64_MAX if none is in flight.
  uint64_t next_due_ns() const;
  FaultCounts counts() const;

 private:
  friend class LoopbackPort;
  struct Packet {
    std::vector<std::byte> bytes;
    Endpoint from;
  };
  using Queue = std::multimap<uint64_t, Packet>;  // by due time; equal times keep their order

  void send(const Endpoint& from, const TxPacket& packet);
  void deliver(const Endpoint& from, const Endpoint& to, std::vector<std::byte> bytes);
  bool chance(double probability) { return probability > 0 && rng_.unit() < probability; }

  mutable std::mutex mutex_;
  FaultPlan plan_;
  Rng rng_;
  FaultCounts counts_;
  uint64_t now_ns_ = 0;
  std::map<std::pair<std::array<uint8_t, 16>, uint16_t>, Queue> queues_;
};

// Satisfies Port. Used by one thread.
class LoopbackPort {
 public:
  // `network` must outlive the port. A port with a `remote` is connected, as a worker's is: it
  // sends all packets there and ignores TxPacket::to.
  LoopbackPort(LoopbackNetwork& network, const Endpoint& local)
      : network_(&network), local_(local) {}
  LoopbackPort(LoopbackNetwork& network, const Endpoint& local, const Endpoint& remote)
      : network_(&network), local_(local), remote_(remote), connected_(true) {}

  size_t rx_burst(std::span<RxPacket> packets);
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd() const { return -1; }
  Capabilities capabilities() const;
  const PortCounters& counters() const { return counters_; }
  const Endpoint& local() const { return local_; }

 private:
  LoopbackNetwork* network_;
  Endpoint local_;
  Endpoint remote_;
  bool connected_ = false;
  PortCounters counters_;                      // all 0: this port refuses nothing
  std::vector<LoopbackNetwork::Packet> held_;  // packets of the last burst
};

static_assert(Port<LoopbackPort>);

}  // namespace pbox::nic
