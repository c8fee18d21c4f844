// The rack's network: packets between sockets of hosts, with the faults that a seed has drawn, and
// an account of every packet. Each packet that a port has sent or the network has duplicated is
// delivered, dropped by a named fault, in flight, or waiting in a receive ring. A packet has no
// other outcome.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/rng.h"
#include "nic/port.h"
#include "tests/sim/cable.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/faults.h"
#include "tests/sim/number_set.h"
#include "tests/sim/options.h"

namespace pbox::sim {

// Numbers of hosts, in this order: boxes, workers, one outsider, and the client side of each box,
// from which it calls other boxes and itself. A rank has one host for all parts of its job.
using HostId = uint32_t;
HostId outsider_of(const Options& options);
HostId client_of(const Options& options, HostId box);
nic::Endpoint endpoint_of(HostId host, uint16_t port);
HostId host_of(const nic::Endpoint& endpoint);

struct Packet {
  std::vector<std::byte> bytes;
  nic::Endpoint from;
  nic::Endpoint to;
  bool damaged = false;  // changed by the network, forged, or with keys a copy of an earlier one
};

// The packets that wait at a port. Their bytes are bounded and, unless slots_max is 0, their
// number.
struct ReceiveRing {
  uint64_t bytes_max = UINT64_MAX;
  uint32_t slots_max = 0;
  std::function<void()> on_arrival = {};
  std::deque<Packet> waiting = {};
  uint64_t bytes = 0;
};

class Network {
 public:
  // `checks`: whether packet numbers are checked.
  Network(EventQueue& queue, const Options& options, FaultCounts& counts, bool checks);

  // Opens a socket at an address, which must be free. The reference stays valid until close().
  ReceiveRing& open(const nic::Endpoint& local, ReceiveRing ring);
  // Closes the socket. Drops the packets that wait there and those that arrive later.
  void close(const nic::Endpoint& local);

  void send(const nic::Endpoint& from, const nic::TxPacket& packet);
  // Sends bytes that no port has made; they count as sent.
  void inject(const nic::Endpoint& from, const nic::Endpoint& to, std::vector<std::byte> bytes,
              bool is_forged = false);
  // Returns a packet that some port has sent recently, as an attacker on the path could copy it.
  // Empty in a rack without outsiders.
  const Packet& overheard(uint64_t draw) const { return overheard_[draw % overheard_.size()]; }
  // Takes one packet from a ring for the port that polls it.
  Packet take(ReceiveRing& ring);
  // Returns whether the host's link will finish its packets within `ahead_ns` from now. If not,
  // `on_room` is called later, at the time from which it will.
  bool has_room(HostId host, uint64_t ahead_ns, const std::function<void()>& on_room);
  // Called when the port no longer needs the packet. Its memory is reused for another one.
  void give_back(Packet& packet) { spare_.push_back(std::move(packet.bytes)); }
  // `tap` sees each packet that a port takes.
  void set_tap(std::function<void(const Packet&)> tap) { tap_ = std::move(tap); }

  // These faults have a beginning and an end. heal() ends all faults, including those drawn per
  // packet.
  void set_blocked(HostId from, HostId to, bool blocked) { link(from, to).blocked = blocked; }
  bool blocked(HostId from, HostId to) { return link(from, to).blocked; }
  void set_clogged(HostId from, HostId to, bool clogged);
  // Selects all PUSH or RESULT packets with one fragment of a chunk to or from hosts [first, last).
  struct Fragment {
    HostId first = 0, last = 0;
    uint32_t chunk = 0;
    uint16_t fragment = 0;
    wire::PacketType type = wire::PacketType::kPush;
  };
  void set_dropped(const std::optional<Fragment>& fragment) { dropped_ = fragment; }
  // Starts the TCP flows that share cables with jobs.
  void start_flows();
  void heal();

  // Reports a violation unless every packet is accounted for.
  void check_conservation() const;
  // Returns true if no packet is in flight or in a ring.
  bool empty() const { return in_flight_ == 0 && waiting_ == 0; }
  uint64_t trace_hash() const { return trace_hash_; }
  uint64_t sent() const { return sent_; }
  // Returns the traffic on each of Options::cables, by CableDirection.
  std::vector<std::array<CableUse, 2>> cable_uses() const;

 private:
  struct Link {
    bool blocked = false;
    bool clogged = false;
    bool in_burst = false;
    uint64_t last_due_ns = 0;
    std::vector<Packet> held = {};
  };

  bool chance(double probability) { return probability > 0 && rng_.unit() < probability; }
  Link& link(HostId from, HostId to) { return links_[from * host_count_ + to]; }
  void drop(Fault fault);
  void route(Packet packet);
  std::optional<Fault> loss_of(Link& link, const Packet& packet);
  bool is_dropped_fragment(const Packet& packet) const;
  void damage(Packet& packet);
  void transmit(Link& link, Packet packet, bool is_copy);
  uint64_t serialised_ns(const Packet& packet);
  CableQueue* cable_queue(const Packet& packet);
  void deliver(uint32_t slot);
  void note(uint64_t what, const Packet& packet);
  bool is_first(const Packet& packet);
  void check_packet_number(const nic::Endpoint& from, const nic::TxPacket& packet);

  EventQueue& queue_;
  const Options& options_;
  PacketFaults faults_;
  FaultCounts& counts_;
  Rng rng_;
  uint32_t host_count_;
  std::vector<Link> links_;
  std::vector<uint64_t> transmit_free_ns_, receive_free_ns_;  // by host
  std::vector<std::unique_ptr<AccessCable>> cables_;          // by host; null if it has none
  std::map<std::pair<HostId, uint16_t>, ReceiveRing> rings_;
  std::optional<Fragment> dropped_;
  std::vector<Packet> slots_;  // packets in flight
  std::vector<uint32_t> free_slots_;
  std::vector<std::vector<std::byte>> spare_;  // memory for packets
  bool checks_;
  bool has_listener_;
  NumberSet used_numbers_;
  NumberSet arrived_;  // with keys: packets that have arrived whole at a port
  std::vector<Packet> overheard_ = std::vector<Packet>(32);
  std::function<void(const Packet&)> tap_;
  uint64_t trace_hash_ = 0;
  uint64_t sent_ = 0, copied_ = 0, dropped_count_ = 0, taken_ = 0;
  uint64_t in_flight_ = 0, waiting_ = 0;
};

// A port over this network. Pipelines and workers poll it like any other port.
class SimPort {
 public:
  SimPort(Network& network, const nic::Endpoint& local, ReceiveRing& ring, const Options& options)
      : network_(&network),
        local_(local),
        ring_(&ring),
        burst_packets_(options.burst_packets),
        send_packets_(options.send_packets) {}

  // Returns true if the port neither holds packets of the previous burst nor has new ones.
  bool is_empty() const { return held_.empty() && ring_->waiting.empty(); }
  size_t rx_burst(std::span<nic::RxPacket> packets);
  size_t tx_burst(std::span<const nic::TxPacket> packets);
  int event_fd() const { return -1; }
  nic::Capabilities capabilities() const { return {.kind = "sim"}; }
  const nic::PortCounters& counters() const { return counters_; }

  const nic::Endpoint& local() const { return local_; }
  const ReceiveRing& ring() const { return *ring_; }
  // Returns the packets of the last burst.
  const std::vector<Packet>& held() const { return held_; }
  uint64_t packets_given() const { return packets_given_; }
  // Counts packets that the port's user was given past this network (attack.cc).
  void count_given(uint64_t packets) { packets_given_ += packets; }
  // Returns true if the port took all packets that it was last offered.
  bool took_all() const { return took_all_; }
  void set_burst_packets(uint32_t burst_packets) { burst_packets_ = burst_packets; }
  // From now on the port takes packets only while its host's link will finish all earlier ones
  // within `ahead_ns`. `on_room` is called when it takes packets again.
  void bound_sending(uint64_t ahead_ns, std::function<void()> on_room) {
    send_ahead_ns_ = ahead_ns;
    on_room_ = std::move(on_room);
  }
  // `watch` sees each packet when it is sent.
  void set_watch(std::function<void(const nic::TxPacket&)> watch) { watch_ = std::move(watch); }
  // `watch` sees each burst that the port is offered, and how many of its packets the port takes.
  using BurstWatch = std::function<void(std::span<const nic::TxPacket> packets, size_t taken)>;
  void set_burst_watch(BurstWatch watch) { burst_watch_ = std::move(watch); }

 private:
  Network* network_;
  nic::Endpoint local_;
  ReceiveRing* ring_;
  uint32_t burst_packets_;
  uint32_t send_packets_;
  uint64_t send_ahead_ns_ = UINT64_MAX;
  std::function<void()> on_room_;
  nic::PortCounters counters_;  // stays 0, because nothing is refused here
  std::vector<Packet> held_;
  std::function<void(const nic::TxPacket&)> watch_;
  BurstWatch burst_watch_;
  uint64_t packets_given_ = 0;
  bool took_all_ = true;
};

static_assert(nic::Port<SimPort>);

}  // namespace pbox::sim
