// Classification of received frames, from their bytes and the interface alone. It is strict: a
// frame that deviates from its standard is dropped, and the verdict says why. UDP over IPv4 and
// IPv6 is classified inline, everything else out of line.
//
// A frame is contiguous, starts with the destination MAC and has no check sequence. Padding after
// the IP packet is ignored. No byte outside of the frame is read. Any core; no state, no
// allocation.
#pragma once

#include <optional>
#include <span>

#include "base/check.h"
#include "nic/ethernet/checksum.h"
#include "nic/ethernet/interface.h"
#include "nic/port.h"

namespace pbox::nic {

enum class Verdict : uint8_t {
  kUdp = 0,    // a datagram for us; `datagram` is filled in
  kAnswer,     // an ARP, neighbour discovery or echo request to us: call learn() and answer()
  kLearn,      // an ARP reply or neighbour advertisement, gratuitous ones included: call learn()
  kPathMtu,    // a router reports that our packet exceeds a link's MTU: call read_path_mtu()
  kNotForUs,   // the destination MAC or IP address is not ours
  kNotIp,      // an unsupported ethertype
  kVlan,       // a wrong, missing or unexpected VLAN tag
  kMalformed,  // inconsistent lengths, IP options, wrong versions, reserved values
  kFragment,   // a fragment of an IP packet: never accepted
  kChecksum,   // a wrong checksum of the IPv4 header, UDP or ICMP, or no UDP checksum over IPv6
  kProtocol,   // an unsupported protocol over IP
  kUdpPort,    // a UDP port that is not served
  kSource,     // a source address, MAC or port that no peer can have
};
inline constexpr size_t kVerdictCount = 13;

// Returns the label value for metrics: "udp", "not_for_us", ...
const char* reason(Verdict verdict);

// Checksums that the NIC has verified already.
struct HardwareChecks {
  bool ip_good = false;
  bool udp_good = false;
};

// The UDP ports that are served: [first, first + count).
struct UdpPorts {
  uint16_t first = 0;
  uint16_t count = 0;

  bool serves(uint16_t port) const { return static_cast<uint16_t>(port - first) < count; }
};

// Classifies a frame. If the verdict is kUdp, all fields of `datagram` are set and its data points
// into the frame; the scope of `from` is 0. Otherwise the fields of `datagram` are undefined. A UDP
// checksum that the NIC has not verified is verified here, after everything else.
Verdict classify(std::span<const std::byte> frame, const Interface& interface,
                 const MacAddress& own_mac, UdpPorts ports, HardwareChecks checks,
                 RxPacket& datagram);

// A router's report: packets to `to` pass a link whose MTU is `mtu` bytes, less than the
// interface's MTU. The report is not authenticated. Values below the IP minimum are refused
// already; the caller decides whether to believe the others. read_path_mtu() returns nothing if the
// frame is not kPathMtu.
struct PathMtu {
  Endpoint to;
  uint32_t mtu = 0;
};
std::optional<PathMtu> read_path_mtu(std::span<const std::byte> frame, const Interface& interface,
                                     const MacAddress& own_mac, UdpPorts ports);

// A frame's statement that `mac` has `address` (RFC 826, RFC 4861 section 7.2). The MAC is unicast
// and is the frame's source. The address belongs to a peer on the link.
struct NeighbourClaim {
  IpAddress address;
  MacAddress mac;
  bool is_request_to_us = false;  // the sender is about to send us packets
  bool may_replace = true;        // false: the claim may confirm a known MAC but not change it
};
// Returns nothing if the frame makes no such statement: it is neither kLearn nor an ARP request or
// solicitation that is kAnswer, it comes from the unspecified address, or it is a solicitation
// without the sender's MAC among its options.
std::optional<NeighbourClaim> read_claim(std::span<const std::byte> frame,
                                         const Interface& interface, const MacAddress& own_mac);

// --- per packet ---

// Classifies every frame except UDP to our MAC.
Verdict classify_other(std::span<const std::byte> frame, const Interface& interface,
                       const MacAddress& own_mac, UdpPorts ports);

// Returns why an IPv4 packet must be dropped, or nothing if its header is correct. `payload` is the
// payload of an Ethernet frame to our MAC, with padding.
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

// Returns why an IPv6 packet must be dropped, or nothing. The addresses are not checked, because
// neighbour discovery has its own rules for them.
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

// Returns the sum of the pseudo-header (RFC 768; RFC 8200 section 8.1). `addresses` points to the
// source and destination addresses, which are adjacent in both IP headers.
template <size_t addresses_bytes>
inline uint64_t pseudo_header_sum(const std::byte* addresses, std::byte protocol, size_t bytes) {
  PBOX_DCHECK(bytes <= UINT16_MAX);
  return sum_header<addresses_bytes>(addresses) + word_of(static_cast<uint16_t>(protocol)) +
         word_of(static_cast<uint16_t>(bytes));
}
inline constexpr size_t kIpv4AddressesBytes = 8;
inline constexpr size_t kIpv6AddressesBytes = 32;

template <size_t addresses_bytes>
inline bool is_sum_good(const std::byte* addresses, std::byte protocol,
                        std::span<const std::byte> carried) {
  PBOX_DCHECK(carried.size() <= UINT16_MAX);
  Checksum sum(pseudo_header_sum<addresses_bytes>(addresses, protocol, carried.size()));
  sum.add(carried);
  return sum.folded() == 0xffff;
}

// Reads the UDP header. `udp` is the payload of the IP packet. Sets all of `datagram` except the
// addresses.
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
  PBOX_DCHECK(datagram.data + datagram.bytes == udp.data() + udp.size());
  PBOX_DCHECK(ports.serves(datagram.to_port) && datagram.from.port != 0);
  return Verdict::kUdp;
}

inline Verdict classify_ipv4_udp(std::span<const std::byte> payload, const Interface& interface,
                                 UdpPorts ports, HardwareChecks checks, RxPacket& datagram) {
  if (const auto fault = ipv4_fault(payload, interface, checks)) return *fault;
  const std::byte* header = payload.data();
  datagram.from.address = ipv4_address(header + ipv4::kSource).bytes;
  datagram.from.scope_id = 0;
  datagram.from.ipv6 = false;
  datagram.to = ipv4_address(header + ipv4::kDestination).bytes;
  const size_t udp_bytes = load16(header + ipv4::kTotalLength) - ipv4::kBytes;
  PBOX_DCHECK(ipv4::kBytes + udp_bytes <= payload.size());  // ipv4_fault() checked it
  const auto udp = payload.subspan(ipv4::kBytes, udp_bytes);
  const Verdict verdict = read_udp(udp, ports, datagram);
  if (verdict != Verdict::kUdp || checks.udp_good) return verdict;
  if (load16(udp.data() + udp::kChecksum) == 0) return Verdict::kUdp;  // sent without checksum
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
  datagram.to = ipv6_address(header + ipv6::kDestination).bytes;
  PBOX_DCHECK(ipv6::kBytes + load16(header + ipv6::kPayloadLength) <= payload.size());
  const auto udp = payload.subspan(ipv6::kBytes, load16(header + ipv6::kPayloadLength));
  const Verdict verdict = read_udp(udp, ports, datagram);
  if (verdict != Verdict::kUdp) return verdict;
  if (load16(udp.data() + udp::kChecksum) == 0) return Verdict::kChecksum;
  if (checks.udp_good) return Verdict::kUdp;
  const std::byte* addresses = header + ipv6::kSource;
  return is_sum_good<kIpv6AddressesBytes>(addresses, protocol::kUdp, udp) ? Verdict::kUdp
                                                                          : Verdict::kChecksum;
}

// Returns the length of the Ethernet header, with the interface's VLAN tag.
inline size_t ethernet_bytes(const Interface& interface) {
  PBOX_DCHECK(interface.vlan <= ethernet::kVlanMask);
  return ethernet::kBytes + (interface.vlan != 0 ? ethernet::kTagBytes : 0);
}

// Returns whether a frame of at least ethernet_bytes() bytes has the VLAN tag of the interface.
// True for every frame if the interface has none: a tag then shows as an unexpected ethertype.
inline bool has_expected_tag(const std::byte* frame, const Interface& interface) {
  return interface.vlan == 0 ||
         (load16(frame + ethernet::kType) == ethernet::kTypeTag &&
          (load16(frame + ethernet::kType + 2) & ethernet::kVlanMask) == interface.vlan);
}

inline Verdict classify(std::span<const std::byte> frame, const Interface& interface,
                        const MacAddress& own_mac, UdpPorts ports, HardwareChecks checks,
                        RxPacket& datagram) {
  PBOX_DCHECK(is_unicast(own_mac));
  PBOX_DCHECK(frame.data() != nullptr || frame.empty());
  const size_t header_bytes = ethernet_bytes(interface);
  const std::byte* bytes = frame.data();
  if (frame.size() >= header_bytes &&
      std::memcmp(bytes + ethernet::kDestination, own_mac.data(), own_mac.size()) == 0 &&
      (bytes[ethernet::kSource] & std::byte{1}) == std::byte{0} &&
      has_expected_tag(bytes, interface)) {
    const uint16_t type = load16(bytes + header_bytes - 2);
    const auto payload = frame.subspan(header_bytes);
    PBOX_DCHECK(payload.data() == bytes + header_bytes);
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
