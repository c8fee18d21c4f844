// The contract between a port and its user: a pipeline of the box, or a worker's I/O thread. The
// contract is a compile-time concept. The loop is instantiated for each kind of port, so a burst
// costs no indirect call. The kind is chosen once, at start.
//
// Ownership. Received bytes belong to the port and stay valid until the next rx_burst. Header, tag
// and payload to send belong to the caller and must not change until tx_burst has returned. Where a
// device reads payloads in place (dpdk, rdma), it may still read them after that: the memory may be
// freed only once the port's remove_memory() has returned true, and its contents may change only
// once the receivers no longer need the packet.
//
// Threads. All functions belong to the one thread that polls the port, except counters().
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "nic/endpoint.h"
#include "nic/port_counters.h"
#include "nic/rss.h"
#include "nic/wire/header.h"
#include "nic/wire/tag.h"

namespace pbox::nic {

// A received packet. It may have any length and any content: nothing is verified yet.
struct RxPacket {
  const std::byte* data = nullptr;  // header, payload, tag; valid until the next rx_burst
  uint32_t bytes = 0;
  Endpoint from;
  LocalAddress to{};     // all zero: the port has only one address
  uint16_t to_port = 0;  // UDP port, where one queue serves several; 0: the port's own
  // Payload and tag, if they do not follow the header at `data`. Either both are set or neither. A
  // port that shares memory with its peers copies the header, so that the peer cannot change it
  // after the checks, and may leave the payload in the sender's memory.
  const std::byte* payload = nullptr;
  const std::byte* tag = nullptr;
};

// Does what wire::parse() does, for a packet whose header and payload may be in different places.
inline wire::Reject parse(const RxPacket& packet, wire::Parsed& parsed) {
  const wire::Reject reject = wire::parse(packet.data, packet.bytes, parsed);
  if (packet.payload == nullptr) return reject;
  PBOX_DCHECK(packet.tag != nullptr);
  parsed.payload = packet.payload;
  parsed.tag = packet.tag;
  return reject;
}

// A packet to send. The port gathers header, payload and tag.
struct TxPacket {
  const Endpoint* to = nullptr;  // a connected port ignores it, so it may be nullptr there
  // The address to send from: RxPacket::to of a packet from `to`. If it is nullptr or all zero, the
  // port chooses.
  const LocalAddress* from = nullptr;
  wire::Header header;
  const std::byte* payload = nullptr;  // header.payload_bytes bytes; may be nullptr if that is 0
  wire::Tag tag;
};

// How a packet reaches the queue of its pipeline. Values are stable: they appear on the control
// connection.
enum class QueueAffinity : uint8_t {
  // The UDP destination port selects the queue: the pipeline has its own socket, an rte_flow rule,
  // or the NIC's only queue.
  kUdpPort = 0,
  // The NIC's RSS hash selects the queue. The worker computes a source port that reaches it.
  kRssHash = 1,
  // The peer's TX queue i is RX queue i here (memif, vhost).
  kSenderQueue = 2,
  // An unpublished hash selects the queue (af_packet's fanout). The worker tries source ports.
  kSourceTrial = 3,
  // Software: the pipeline that receives a packet hands it over to its owner.
  kDispatch = 4,
};
inline constexpr uint32_t kQueueAffinityCount = 5;

// Returns a name for logs and metrics: "udp-port", "rss-hash", ...
const char* to_string(QueueAffinity affinity);

struct Capabilities {
  const char* kind = "";              // name of the port kind, such as "socket"
  uint32_t mtu = 0;                   // bytes of path or interface MTU, with IP header; 0: unknown
  uint32_t receive_buffer_bytes = 0;  // bytes that wait unread before the port drops packets
  uint32_t receive_slots = 0;         // packets, of any size, that wait unread; 0: no such bound
  bool segmentation_offload = false;  // one call sends many packets of equal size (UDP GSO)
  bool receive_coalescing = false;    // one call receives many packets of equal size (UDP GRO)
  QueueAffinity affinity = QueueAffinity::kUdpPort;
  uint32_t queue = 0;                             // index of the NIC's queue
  std::shared_ptr<const RssTable> rss = nullptr;  // kRssHash only
};

template <typename P>
concept Port = requires(P port, std::span<RxPacket> rx, std::span<const TxPacket> tx) {
  // Fills a prefix of rx and returns its length; 0 if no packet waits. Never blocks.
  { port.rx_burst(rx) } -> std::same_as<size_t>;
  // Takes a prefix of tx and returns its length, which is less than tx.size() if the transport is
  // full. A packet that was taken may still be lost. Never blocks.
  { port.tx_burst(tx) } -> std::same_as<size_t>;
  // Returns a descriptor that is readable when rx_burst would return packets; -1 if the port can
  // only be polled. Call it just before each sleep.
  { port.event_fd() } -> std::same_as<int>;
  { port.capabilities() } -> std::same_as<Capabilities>;
  // Any thread may call it, as long as the port exists and is not moved.
  { std::as_const(port).counters() } -> std::same_as<const PortCounters&>;
};

}  // namespace pbox::nic
