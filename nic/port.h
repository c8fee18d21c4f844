// The contract between a transport and whoever moves packets through it: the box's pipelines and
// the worker's I/O thread. A compile-time concept: the loop is instantiated per port kind, so a
// burst costs no indirect call, and the kind is chosen once at start.
//
// Ownership. Received bytes belong to the port and stay valid until the next rx_burst. Bytes to
// send belong to the caller and must not change until tx_burst has returned (ports that copy, as
// sockets do).
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

struct RxPacket {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  Endpoint from;
  uint16_t to_port = 0;  // of several UDP ports behind one queue; 0: the port's own
};

// header, payload and tag are gathered by the port; the payload is not copied to build the packet.
struct TxPacket {
  const Endpoint* to = nullptr;  // ignored by a connected port, which may be given none
  wire::Header header;
  const std::byte* payload = nullptr;  // header.payload_bytes bytes
  wire::Tag tag;
};

// How a packet finds the queue of its pipeline. Values are stable: they cross the control
// connection.
enum class QueueAffinity : uint8_t {
  kUdpPort = 0,  // the destination port alone leads there: a socket of its own, an rte_flow rule
                 // or the NIC's only queue
  kRssHash = 1,  // the NIC's RSS hash decides: the worker computes a source port that leads there
  kSenderQueue = 2,  // the peer's TX queue i is the RX queue i (memif, vhost)
  kSourceTrial = 3,  // a hash that nobody publishes decides (af_packet's fanout): the worker tries
                     // source ports
  kDispatch = 4,     // software: whoever receives hands over to the owner
};
inline constexpr uint32_t kQueueAffinityCount = 5;

// "udp-port", "rss-hash", ...
const char* to_string(QueueAffinity affinity);

struct Capabilities {
  const char* kind = "";
  uint32_t mtu = 0;                   // of the path or interface, IP header included; 0: unknown
  uint32_t receive_buffer_bytes = 0;  // what the receive ring holds before it drops
  uint32_t receive_slots = 0;         // packets that it holds, of whatever size; 0: no such bound
  bool segmentation_offload = false;  // one call sends many equal packets (UDP GSO)
  bool receive_coalescing = false;    // one call receives many equal packets (UDP GRO)
  QueueAffinity affinity = QueueAffinity::kUdpPort;
  uint32_t queue = 0;                             // of the NIC
  std::shared_ptr<const RssTable> rss = nullptr;  // kRssHash only
};

template <typename P>
concept Port = requires(P port, std::span<RxPacket> rx, std::span<const TxPacket> tx) {
  // Fills a prefix of rx and returns its length; 0 if nothing waits. Never blocks.
  { port.rx_burst(rx) } -> std::same_as<size_t>;
  // Sends a prefix of tx and returns its length; less than tx.size() if the transport is full.
  { port.tx_burst(tx) } -> std::same_as<size_t>;
  // Becomes readable when rx_burst would return packets; -1 if the port can only be polled.
  { port.event_fd() } -> std::same_as<int>;
  { port.capabilities() } -> std::same_as<Capabilities>;
  // Readable by any thread as long as the port lives where it is.
  { std::as_const(port).counters() } -> std::same_as<const PortCounters&>;
};

}  // namespace pbox::nic
