// What a received frame is, decided from its bytes and the interface alone. Strict: what is not
// exactly as its standard says is dropped, with the reason as the value. UDP over IPv4 and IPv6 is
// decided inline, the rest out of line.
//
// Frames lie in one piece, from the destination MAC on, without the check sequence; padding behind
// the IP packet is ignored. Nothing outside of them is read. Any core; no state, no allocation.
#pragma once

#include <optional>
#include <span>

#include "nic/ethernet/checksum.h"
#include "nic/ethernet/interface.h"
#include "nic/port.h"

namespace pbox::nic {

enum class Verdict : uint8_t {
  kUdp = 0,    // the datagram is filled in
  kAnswer,     // a request for us, of ARP, neighbour discovery or echo: answer(), and learn()
  kLearn,      // an ARP reply or a neighbour advertisement, gratuitous ones too: learn()
  kPathMtu,    // a packet of ours did not fit somewhere: read_path_mtu()
  kNotForUs,   // another MAC or IP address
  kNotIp,      // an ethertype that is not served
  kVlan,       // wrong, missing or unwanted tag
  kMalformed,  // lengths that disagree, options, versions, reserved values
  kFragment,   // of an IP packet: never accepted
  kChecksum,   // IPv4 header's, UDP's or ICMP's; none at all over IPv6
  kProtocol,   // IP, but nothing that is served
  kUdpPort,    // a port that is not served
  kSource,     // from an address, MAC or port that no peer can have
};
inline constexpr size_t kVerdictCount = 13;

// A label of metrics: "udp", "not_for_us".
const char* reason(Verdict verdict);

// What the NIC has verified already.
struct HardwareChecks {
  bool ip_good = false;
  bool udp_good = false;
};

// The ports that are served: [first, first + count).
struct UdpPorts {
  uint16_t first = 0;
  uint16_t count = 0;

  bool serves(uint16_t port) const { return static_cast<uint16_t>(port - first) < count; }
};

// `datagram` (scope of `from`: 0) points into the frame. It is written, every field, if the verdict
// is kUdp, and may be in part else. A UDP checksum that the NIC has
// not verified is verified here, after everything else.
Verdict classify(std::span<const std::byte> frame, const Interface& interface,
                 const MacAddress& own_mac, UdpPorts ports, HardwareChecks checks,
                 RxPacket& datagram);

// A packet to this end point met a link that takes packets of `mtu` bytes only, below the
// interface's MTU. Unauthenticated: the smallest are already refused, but whether to believe it is
// the caller's matter. Nothing if the frame is not kPathMtu.
struct PathMtu {
  Endpoint to;
  uint32_t mtu = 0;
};
std::optional<PathMtu> read_path_mtu(std::span<const std::byte> frame, const Interface& interface,
                                     const MacAddress& own_mac, UdpPorts ports);

// What a frame says about who has which address (RFC 826, RFC 4861 section 7.2). The MAC is unicast
// and the sender of the frame, the IP address that of a peer on link.
struct NeighbourClaim {
  IpAddress address;
  MacAddress mac;
  bool asks_us = false;     // a request to us: its sender is about to talk to us
  bool may_replace = true;  // else only a claim that repeats the known MAC counts
};
// Nothing if the frame says nothing: it is neither kLearn nor an ARP request or solicitation that
// is kAnswer, or it comes from the unspecified address.
std::optional<NeighbourClaim> read_claim(std::span<const std::byte> frame,
                                         const Interface& interface, const MacAddress& own_mac);

// --- per packet ---

// Decides about every frame but UDP to our MAC.
Verdict classify_other(std::span<const std::byte> frame, const Interface& interface,
                       const MacAddress& own_mac, UdpPorts ports);

// The fault of an IPv4 packet's header, if any. `payload`: of the Ethernet frame to our MAC,
// padding included.
inline std::optional<Verdict> ipv4_fault(std::span<const std::byte> payload,
                                         const Interface& interface, HardwareChecks checks) {
  const std::byte* header = payload.data();
  if (payload.size() < ipv4::kBytes) return Verdict::kMalformed;
  const size_t packet_bytes = load16(header + ipv4::kTotalLength);
  if (header[0] != ipv4::kVersionAndLength || packet_bytes < ipv4::kBytes ||
      packet_bytes > payload.size()) {
    return Verdict::kMalformed;
  }
  if (!checks.ip_good && fold(sum_header<ipv4::kBytes>(header)) != 0xffff) {
    return Verdict::kChecksum;
  }
  const uint16_t fragment = load16(header + ipv4::kFragment);
  if ((fragment & ~ipv4::kDontFragment) != 0) {
    return (fragment & ipv4::kReservedFlag) != 0 ? Verdict::kMalformed : Verdict::kFragment;
  }
  if (!interface.is_own_ipv4(header + ipv4::kDestination)) return Verdict::kNotForUs;
  if (!interface.is_peer_ipv4(header + ipv4::kSource)) return Verdict::kSource;
  return std::nullopt;
}

// The same of IPv6, but for the addresses: those of neighbour discovery have rules of their own.
inline std::optional<Verdict> ipv6_fault(std::span<const std::byte> payload) {
  const std::byte* header = payload.data();
  if (payload.size() < ipv6::kBytes || (header[0] >> 4) != std::byte{6} ||
      ipv6::kBytes + load16(header + ipv6::kPayloadLength) > payload.size()) {
    return Verdict::kMalformed;
  }
  return std::nullopt;
}

inline std::optional<Verdict> ipv6_address_fault(const std::byte* header,
                                                 const Interface& interface,
                                                 const MacAddress& own_mac) {
  if (!interface.is_own_ipv6(header + ipv6::kDestination, own_mac)) return Verdict::kNotForUs;
  if (!interface.is_peer_ipv6(header + ipv6::kSource, own_mac)) return Verdict::kSource;
  return std::nullopt;
}

// Sum of the pseudo-header (RFC 768; RFC 8200 section 8.1): both addresses, which lie side by side
// in either header, and what follows.
template <size_t addresses_bytes>
inline uint64_t pseudo_header_sum(const std::byte* addresses, std::byte protocol, size_t bytes) {
  return sum_header<addresses_bytes>(addresses) + word_of(static_cast<uint16_t>(protocol)) +
         word_of(static_cast<uint16_t>(bytes));
}
inline constexpr size_t kIpv4AddressesBytes = 8;
inline constexpr size_t kIpv6AddressesBytes = 32;

template <size_t addresses_bytes>
inline bool is_sum_good(const std::byte* addresses, std::byte protocol,
                        std::span<const std::byte> carried) {
  Checksum sum(pseudo_header_sum<addresses_bytes>(addresses, protocol, carried.size()));
  sum.add(carried);
  return sum.folded() == 0xffff;
}

// `udp`: what the IP packet carries. Leaves the address of datagram.from to the caller.
inline Verdict read_udp(std::span<const std::byte> udp, UdpPorts ports, RxPacket& datagram) {
  const std::byte* header = udp.data();
  if (udp.size() < udp::kBytes || load16(header + udp::kLength) != udp.size()) {
    return Verdict::kMalformed;
  }
  datagram.to_port = load16(header + udp::kDestinationPort);
  if (!ports.serves(datagram.to_port)) return Verdict::kUdpPort;
  datagram.from.port = load16(header + udp::kSourcePort);
  if (datagram.from.port == 0) return Verdict::kSource;
  datagram.data = header + udp::kBytes;
  datagram.bytes = static_cast<uint32_t>(udp.size() - udp::kBytes);
  return Verdict::kUdp;
}

inline Verdict classify_ipv4_udp(std::span<const std::byte> payload, const Interface& interface,
                                 UdpPorts ports, HardwareChecks checks, RxPacket& datagram) {
  if (const auto fault = ipv4_fault(payload, interface, checks)) return *fault;
  const std::byte* header = payload.data();
  datagram.from.address = ipv4_address(header + ipv4::kSource).bytes;
  datagram.from.scope_id = 0;
  datagram.from.ipv6 = false;
  const size_t udp_bytes = load16(header + ipv4::kTotalLength) - ipv4::kBytes;
  const auto udp = payload.subspan(ipv4::kBytes, udp_bytes);
  const Verdict verdict = read_udp(udp, ports, datagram);
  if (verdict != Verdict::kUdp || checks.udp_good) return verdict;
  if (load16(udp.data() + udp::kChecksum) == 0) return Verdict::kUdp;  // the sender made none
  const std::byte* addresses = header + ipv4::kSource;
  return is_sum_good<kIpv4AddressesBytes>(addresses, protocol::kUdp, udp) ? Verdict::kUdp
                                                                          : Verdict::kChecksum;
}

inline Verdict classify_ipv6_udp(std::span<const std::byte> payload, const Interface& interface,
                                 const MacAddress& own_mac, UdpPorts ports, HardwareChecks checks,
                                 RxPacket& datagram) {
  if (const auto fault = ipv6_fault(payload)) return *fault;
  const std::byte* header = payload.data();
  if (const auto fault = ipv6_address_fault(header, interface, own_mac)) return *fault;
  datagram.from.address = ipv6_address(header + ipv6::kSource).bytes;
  datagram.from.scope_id = 0;
  datagram.from.ipv6 = true;
  const auto udp = payload.subspan(ipv6::kBytes, load16(header + ipv6::kPayloadLength));
  const Verdict verdict = read_udp(udp, ports, datagram);
  if (verdict != Verdict::kUdp) return verdict;
  if (load16(udp.data() + udp::kChecksum) == 0) return Verdict::kChecksum;
  if (checks.udp_good) return Verdict::kUdp;
  const std::byte* addresses = header + ipv6::kSource;
  return is_sum_good<kIpv6AddressesBytes>(addresses, protocol::kUdp, udp) ? Verdict::kUdp
                                                                          : Verdict::kChecksum;
}

// Bytes in front of the IP packet.
inline size_t ethernet_bytes(const Interface& interface) {
  return ethernet::kBytes + (interface.vlan != 0 ? ethernet::kTagBytes : 0);
}

// Whether a frame of at least ethernet_bytes() bytes has the interface's tag, or none if so.
inline bool has_tag(const std::byte* frame, const Interface& interface) {
  return interface.vlan == 0 ||
         (load16(frame + ethernet::kType) == ethernet::kTypeTag &&
          (load16(frame + ethernet::kType + 2) & ethernet::kVlanMask) == interface.vlan);
}

inline Verdict classify(std::span<const std::byte> frame, const Interface& interface,
                        const MacAddress& own_mac, UdpPorts ports, HardwareChecks checks,
                        RxPacket& datagram) {
  const size_t header_bytes = ethernet_bytes(interface);
  const std::byte* bytes = frame.data();
  if (frame.size() >= header_bytes &&
      std::memcmp(bytes + ethernet::kDestination, own_mac.data(), own_mac.size()) == 0 &&
      (bytes[ethernet::kSource] & std::byte{1}) == std::byte{0} && has_tag(bytes, interface)) {
    const uint16_t type = load16(bytes + header_bytes - 2);
    const auto payload = frame.subspan(header_bytes);
    if (type == ethernet::kTypeIpv4 && payload.size() > ipv4::kProtocol &&
        payload[ipv4::kProtocol] == protocol::kUdp) {
      return classify_ipv4_udp(payload, interface, ports, checks, datagram);
    }
    if (type == ethernet::kTypeIpv6 && payload.size() > ipv6::kNextHeader &&
        payload[ipv6::kNextHeader] == protocol::kUdp) {
      return classify_ipv6_udp(payload, interface, own_mac, ports, checks, datagram);
    }
  }
  return classify_other(frame, interface, own_mac, ports);
}

}  // namespace pbox::nic
