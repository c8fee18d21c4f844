#include "nic/ethernet/receive.h"

#include "base/check.h"
#include "nic/ethernet/discovery.h"

namespace pbox::nic {
namespace {

struct Context {
  std::span<const std::byte> frame;
  const Interface& interface;
  const MacAddress& own_mac;
  UdpPorts ports;
};

// Facts that a frame states, besides its verdict.
struct Details {
  std::optional<NeighbourClaim> claim;
  std::optional<PathMtu> path_mtu;
};

// Reads the start of our own packet that was too big: `inner` holds its IP header, of `ip_bytes`,
// and its UDP header.
Verdict read_too_big(std::span<const std::byte> inner, size_t ip_bytes, const IpAddress& to,
                     uint32_t mtu, const Context& context, Details& details) {
  PBOX_DCHECK(inner.size() >= ip_bytes + udp::kBytes);
  const std::byte* udp = inner.data() + ip_bytes;
  const uint16_t to_port = load16(udp + udp::kDestinationPort);
  if (!context.interface.is_peer(to, context.own_mac) || to_port == 0) return Verdict::kMalformed;
  if (!context.ports.serves(load16(udp + udp::kSourcePort))) return Verdict::kUdpPort;
  const uint32_t mtu_min = to.ipv6 ? ipv6::kMtuMin : ipv4::kMtuMin;
  if (mtu < mtu_min || mtu >= context.interface.mtu) return Verdict::kMalformed;
  details.path_mtu = {.to = endpoint_of(to, to_port), .mtu = mtu};
  return Verdict::kPathMtu;
}

Verdict read_fragmentation_needed(std::span<const std::byte> icmp, const Context& context,
                                  Details& details) {
  PBOX_DCHECK(icmp.size() >= icmp::kBytes);
  const auto inner = icmp.subspan(icmp::kBytes);
  const std::byte* header = inner.data();
  if (inner.size() < ipv4::kBytes + udp::kBytes || header[0] != ipv4::kVersionAndLength) {
    return Verdict::kMalformed;
  }
  if (!context.interface.is_own_ipv4(header + ipv4::kSource)) return Verdict::kNotForUs;
  if (header[ipv4::kProtocol] != protocol::kUdp) return Verdict::kProtocol;
  return read_too_big(inner, ipv4::kBytes, ipv4_address(header + ipv4::kDestination),
                      load16(icmp.data() + icmp::kMtu), context, details);
}

Verdict read_packet_too_big(std::span<const std::byte> icmp, const Context& context,
                            Details& details) {
  PBOX_DCHECK(icmp.size() >= icmp::kBytes);
  const auto inner = icmp.subspan(icmp::kBytes);
  const std::byte* header = inner.data();
  if (inner.size() < ipv6::kBytes + udp::kBytes || (header[0] >> 4) != std::byte{6}) {
    return Verdict::kMalformed;
  }
  if (!context.interface.is_own_ipv6(header + ipv6::kSource, context.own_mac)) {
    return Verdict::kNotForUs;
  }
  if (header[ipv6::kNextHeader] != protocol::kUdp) return Verdict::kProtocol;
  return read_too_big(inner, ipv6::kBytes, ipv6_address(header + ipv6::kDestination),
                      load32(icmp.data() + icmpv6::kMtu), context, details);
}

Verdict classify_ipv4_other(std::span<const std::byte> payload, const Context& context,
                            Details& details) {
  if (const auto fault = ipv4_fault(payload, context.interface, {})) return *fault;
  PBOX_DCHECK(payload.size() >= ipv4::kBytes);  // ipv4_fault() checked it
  const std::byte* header = payload.data();
  if (header[ipv4::kProtocol] != protocol::kIcmp) return Verdict::kProtocol;
  const auto icmp =
      payload.subspan(ipv4::kBytes, load16(header + ipv4::kTotalLength) - ipv4::kBytes);
  if (icmp.size() < icmp::kBytes) return Verdict::kMalformed;
  if (fold(sum_words(icmp)) != 0xffff) return Verdict::kChecksum;
  if (icmp[icmp::kType] == icmp::kEchoRequest) {
    return icmp[icmp::kCode] == std::byte{0} ? Verdict::kAnswer : Verdict::kMalformed;
  }
  if (icmp[icmp::kType] == icmp::kUnreachable && icmp[icmp::kCode] == icmp::kFragmentationNeeded) {
    return read_fragmentation_needed(icmp, context, details);
  }
  return Verdict::kProtocol;
}

// `packet`: the IPv6 packet without padding, whose lengths are verified.
Verdict classify_icmpv6(std::span<const std::byte> packet, const Context& context,
                        Details& details) {
  PBOX_DCHECK(packet.size() >= ipv6::kBytes);
  const std::byte* header = packet.data();
  const auto icmp = packet.subspan(ipv6::kBytes);
  if (icmp.size() < icmp::kBytes) return Verdict::kMalformed;
  if (!is_sum_good<kIpv6AddressesBytes>(header + ipv6::kSource, protocol::kIcmpv6, icmp)) {
    return Verdict::kChecksum;
  }
  const std::byte type = icmp[icmp::kType];
  if (type == icmpv6::kNeighbourSolicitation || type == icmpv6::kNeighbourAdvertisement) {
    return read_neighbour_discovery(context.frame, packet, context.interface, context.own_mac,
                                    details.claim);
  }
  if (const auto fault = ipv6_address_fault(header, context.interface, context.own_mac)) {
    return *fault;
  }
  if (type == icmpv6::kEchoRequest) {
    return icmp[icmp::kCode] == std::byte{0} ? Verdict::kAnswer : Verdict::kMalformed;
  }
  if (type == icmpv6::kPacketTooBig) return read_packet_too_big(icmp, context, details);
  return Verdict::kProtocol;
}

Verdict classify_ipv6_other(std::span<const std::byte> payload, const Context& context,
                            Details& details) {
  if (const auto fault = ipv6_fault(payload)) return *fault;
  PBOX_DCHECK(payload.size() >= ipv6::kBytes);  // ipv6_fault() checked it
  const std::byte* header = payload.data();
  const IpAddress destination = ipv6_address(header + ipv6::kDestination);
  const bool to_group = (context.frame[0] & std::byte{1}) != std::byte{0};
  // A group's MAC is derived from its address. A packet to a group may also come to our own MAC
  // (RFC 6085).
  if (to_group) {
    const MacAddress mac = multicast_mac(destination);
    if (destination.bytes[0] != 0xff ||
        std::memcmp(context.frame.data(), mac.data(), mac.size()) != 0) {
      return Verdict::kNotForUs;
    }
  }
  if (header[ipv6::kNextHeader] == protocol::kIcmpv6) {
    const size_t packet_bytes = ipv6::kBytes + load16(header + ipv6::kPayloadLength);
    return classify_icmpv6(payload.first(packet_bytes), context, details);
  }
  if (const auto fault = ipv6_address_fault(header, context.interface, context.own_mac)) {
    return *fault;
  }
  return header[ipv6::kNextHeader] == protocol::kIpv6Fragment ? Verdict::kFragment
                                                              : Verdict::kProtocol;
}

Verdict classify_in_detail(const Context& context, Details& details) {
  const std::span<const std::byte> frame = context.frame;
  if (frame.size() < ethernet::kBytes) return Verdict::kMalformed;
  const std::byte* bytes = frame.data();
  const bool to_us = std::memcmp(bytes, context.own_mac.data(), context.own_mac.size()) == 0;
  const bool to_group = (bytes[0] & std::byte{1}) != std::byte{0};
  if (!to_us && !to_group) return Verdict::kNotForUs;
  MacAddress source;
  std::memcpy(source.data(), bytes + ethernet::kSource, source.size());
  if (!is_unicast(source) || source == context.own_mac) return Verdict::kSource;

  const size_t header_bytes = ethernet_bytes(context.interface);
  if (frame.size() < header_bytes) {
    return load16(bytes + ethernet::kType) == ethernet::kTypeTag ? Verdict::kMalformed
                                                                 : Verdict::kVlan;
  }
  if (!has_expected_tag(bytes, context.interface)) return Verdict::kVlan;
  const auto payload = frame.subspan(header_bytes);
  switch (load16(bytes + header_bytes - 2)) {
    case ethernet::kTypeTag:
    case ethernet::kTypeProviderTag: return Verdict::kVlan;
    case ethernet::kTypeArp:
      return read_arp(frame, payload, context.interface, context.own_mac, details.claim);
    case ethernet::kTypeIpv4:
      return to_us ? classify_ipv4_other(payload, context, details) : Verdict::kNotForUs;
    case ethernet::kTypeIpv6: return classify_ipv6_other(payload, context, details);
    default: return to_us ? Verdict::kNotIp : Verdict::kNotForUs;
  }
}

}  // namespace

const char* reason(Verdict verdict) {
  switch (verdict) {
    case Verdict::kUdp: return "udp";
    case Verdict::kAnswer: return "answer";
    case Verdict::kLearn: return "learn";
    case Verdict::kPathMtu: return "path_mtu";
    case Verdict::kNotForUs: return "not_for_us";
    case Verdict::kNotIp: return "not_ip";
    case Verdict::kVlan: return "vlan";
    case Verdict::kMalformed: return "malformed";
    case Verdict::kFragment: return "fragment";
    case Verdict::kChecksum: return "checksum";
    case Verdict::kProtocol: return "protocol";
    case Verdict::kUdpPort: return "udp_port";
    case Verdict::kSource: return "source";
  }
  return "unknown";
}

Verdict classify_other(std::span<const std::byte> frame, const Interface& interface,
                       const MacAddress& own_mac, UdpPorts ports) {
  PBOX_DCHECK(is_unicast(own_mac));
  Details details;
  return classify_in_detail({frame, interface, own_mac, ports}, details);
}

std::optional<PathMtu> read_path_mtu(std::span<const std::byte> frame, const Interface& interface,
                                     const MacAddress& own_mac, UdpPorts ports) {
  Details details;
  classify_in_detail({frame, interface, own_mac, ports}, details);
  PBOX_DCHECK(!details.path_mtu || details.path_mtu->mtu < interface.mtu);
  return details.path_mtu;
}

std::optional<NeighbourClaim> read_claim(std::span<const std::byte> frame,
                                         const Interface& interface, const MacAddress& own_mac) {
  Details details;
  classify_in_detail({frame, interface, own_mac, {}}, details);
  PBOX_DCHECK(!details.claim || is_unicast(details.claim->mac));
  return details.claim;
}

}  // namespace pbox::nic
