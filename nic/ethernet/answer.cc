#include "nic/ethernet/answer.h"

#include <algorithm>

#include "base/check.h"
#include "nic/ethernet/receive.h"

namespace pbox::nic {
namespace {

constexpr size_t kAdvertisementBytes = icmpv6::kOptions + icmpv6::kLinkLayerOptionBytes;
static_assert(ethernet::kBytes + ethernet::kTagBytes + ipv6::kBytes + kAdvertisementBytes ==
              kAnswerBytesMin);

void put(std::byte* at, const MacAddress& mac) {
  std::memcpy(at, mac.data(), mac.size());
}
void put(std::byte* at, const IpAddress& address) {
  std::memcpy(at, address.bytes.data(), address.ipv6 ? 16 : 4);
}

// Each write_ function returns the position after the bytes it wrote.
std::byte* write_ethernet(std::byte* at, const MacAddress& destination, const MacAddress& own_mac,
                          uint16_t vlan, uint16_t type) {
  put(at + ethernet::kDestination, destination);
  put(at + ethernet::kSource, own_mac);
  at += ethernet::kType;
  if (vlan != 0) {
    store16(at, ethernet::kTypeTag);
    store16(at + 2, vlan);
    at += ethernet::kTagBytes;
  }
  store16(at, type);
  return at + 2;
}

struct ArpPacket {
  uint16_t operation = 0;
  MacAddress sender_mac{};
  IpAddress sender;
  MacAddress target_mac{};
  IpAddress target;
};

std::byte* write_arp(std::byte* at, const ArpPacket& packet) {
  PBOX_DCHECK(!packet.sender.ipv6 && !packet.target.ipv6);
  store16(at, static_cast<uint16_t>(arp::kPrefix >> 32));
  store32(at + 2, static_cast<uint32_t>(arp::kPrefix));
  store16(at + arp::kOperation, packet.operation);
  put(at + arp::kSenderMac, packet.sender_mac);
  put(at + arp::kSenderIp, packet.sender);
  put(at + arp::kTargetMac, packet.target_mac);
  put(at + arp::kTargetIp, packet.target);
  return at + arp::kBytes;
}

std::byte* write_ipv4(std::byte* at, size_t icmp_bytes, const IpAddress& source,
                      const IpAddress& destination) {
  PBOX_DCHECK(!source.ipv6 && !destination.ipv6);
  PBOX_DCHECK(ipv4::kBytes + icmp_bytes <= UINT16_MAX);
  std::memset(at, 0, ipv4::kBytes);
  at[0] = ipv4::kVersionAndLength;
  store16(at + ipv4::kTotalLength, static_cast<uint16_t>(ipv4::kBytes + icmp_bytes));
  store16(at + ipv4::kFragment, ipv4::kDontFragment);
  at[ipv4::kTimeToLive] = std::byte{ipv4::kHops};
  at[ipv4::kProtocol] = protocol::kIcmp;
  put(at + ipv4::kSource, source);
  put(at + ipv4::kDestination, destination);
  const uint16_t checksum = ~fold(sum_header<ipv4::kBytes>(at));
  std::memcpy(at + ipv4::kChecksum, &checksum, sizeof(checksum));
  return at + ipv4::kBytes;
}

std::byte* write_ipv6(std::byte* at, size_t icmp_bytes, std::byte hop_limit,
                      const IpAddress& source, const IpAddress& destination) {
  PBOX_DCHECK(source.ipv6 && destination.ipv6);
  PBOX_DCHECK(icmp_bytes <= UINT16_MAX);
  std::memset(at, 0, ipv6::kBytes);
  at[0] = std::byte{0x60};
  store16(at + ipv6::kPayloadLength, static_cast<uint16_t>(icmp_bytes));
  at[ipv6::kNextHeader] = protocol::kIcmpv6;
  at[ipv6::kHopLimit] = hop_limit;
  put(at + ipv6::kSource, source);
  put(at + ipv6::kDestination, destination);
  return at + ipv6::kBytes;
}

// `before`: the sum of the pseudo-header; 0 for ICMP, which has none.
void set_icmp_checksum(std::span<std::byte> icmp, uint64_t before) {
  PBOX_DCHECK(icmp.size() >= icmp::kBytes);
  std::memset(icmp.data() + icmp::kChecksum, 0, sizeof(uint16_t));
  const uint16_t checksum = ~fold(before + sum_words(icmp));
  std::memcpy(icmp.data() + icmp::kChecksum, &checksum, sizeof(checksum));
}

uint64_t icmpv6_pseudo_sum(const std::byte* icmp, size_t icmp_bytes) {
  return pseudo_header_sum<kIpv6AddressesBytes>(icmp - kIpv6AddressesBytes, protocol::kIcmpv6,
                                                icmp_bytes);
}

// Writes a solicitation or an advertisement. The two differ in type, flags and the option's type.
// The IPv6 header must stand in front of `at`.
std::byte* write_discovery(std::byte* at, std::byte type, std::byte flags, const IpAddress& target,
                           std::byte option, const MacAddress& own_mac) {
  PBOX_DCHECK(target.ipv6);
  std::memset(at, 0, kAdvertisementBytes);
  at[icmp::kType] = type;
  at[icmpv6::kFlags] = flags;
  put(at + icmpv6::kTarget, target);
  at[icmpv6::kOptions] = option;
  at[icmpv6::kOptions + 1] = std::byte{icmpv6::kLinkLayerOptionBytes / 8};
  put(at + icmpv6::kOptions + 2, own_mac);
  set_icmp_checksum({at, kAdvertisementBytes}, icmpv6_pseudo_sum(at, kAdvertisementBytes));
  return at + kAdvertisementBytes;
}

std::byte* write_echo_reply(std::byte* at, std::span<const std::byte> request, std::byte type) {
  PBOX_DCHECK(request.size() >= icmp::kBytes);  // classify() accepted it
  std::memcpy(at, request.data(), request.size());
  at[icmp::kType] = type;
  const bool ipv6 = type == icmpv6::kEchoReply;
  set_icmp_checksum({at, request.size()}, ipv6 ? icmpv6_pseudo_sum(at, request.size()) : 0);
  return at + request.size();
}

// Pads the frame, which ends at `end`, to the minimum length and returns its length.
size_t finish(std::span<std::byte> frame, const std::byte* end) {
  const auto bytes = static_cast<size_t>(end - frame.data());
  PBOX_DCHECK(bytes <= frame.size() && frame.size() >= ethernet::kFrameBytesMin);
  if (bytes >= ethernet::kFrameBytesMin) return bytes;
  std::memset(frame.data() + bytes, 0, ethernet::kFrameBytesMin - bytes);
  return ethernet::kFrameBytesMin;
}

std::byte* answer_arp(std::byte* at, const std::byte* request, const MacAddress& own_mac) {
  ArpPacket reply{.operation = arp::kReply,
                  .sender_mac = own_mac,
                  .sender = ipv4_address(request + arp::kTargetIp),
                  .target_mac = {},
                  .target = ipv4_address(request + arp::kSenderIp)};
  std::memcpy(reply.target_mac.data(), request + arp::kSenderMac, reply.target_mac.size());
  return write_arp(at, reply);
}

std::byte* answer_ipv4(std::byte* at, std::span<const std::byte> packet) {
  const auto icmp = packet.subspan(ipv4::kBytes);
  at = write_ipv4(at, icmp.size(), ipv4_address(packet.data() + ipv4::kDestination),
                  ipv4_address(packet.data() + ipv4::kSource));
  return write_echo_reply(at, icmp, icmp::kEchoReply);
}

std::byte* answer_ipv6(std::byte* at, std::span<const std::byte> packet,
                       const MacAddress& own_mac) {
  const auto icmp = packet.subspan(ipv6::kBytes);
  const IpAddress source = ipv6_address(packet.data() + ipv6::kSource);
  if (icmp[icmp::kType] == icmpv6::kEchoRequest) {
    at = write_ipv6(at, icmp.size(), std::byte{ipv6::kHops},
                    ipv6_address(packet.data() + ipv6::kDestination), source);
    return write_echo_reply(at, icmp, icmpv6::kEchoReply);
  }
  const IpAddress target = ipv6_address(icmp.data() + icmpv6::kTarget);
  // A host without an address yet gets its answer at the group address (RFC 4861 section 7.2.4).
  // The frame still goes to that host's MAC alone (RFC 6085).
  const bool is_from_unspecified = source == IpAddress{.bytes = {}, .ipv6 = true};
  const std::byte flags =
      is_from_unspecified ? icmpv6::kFlagOverride : icmpv6::kFlagOverride | icmpv6::kFlagSolicited;
  at = write_ipv6(at, kAdvertisementBytes, ipv6::kHopsOnLink, target,
                  is_from_unspecified ? all_nodes_address() : source);
  return write_discovery(at, icmpv6::kNeighbourAdvertisement, flags, target,
                         icmpv6::kOptionTargetLinkLayer, own_mac);
}

// Returns the length of an IP packet whose header has been verified.
size_t packet_bytes_of(const std::byte* packet, uint16_t type) {
  return type == ethernet::kTypeIpv4 ? load16(packet + ipv4::kTotalLength)
                                     : ipv6::kBytes + load16(packet + ipv6::kPayloadLength);
}

}  // namespace

size_t answer(std::span<const std::byte> request, const Interface& interface,
              const MacAddress& own_mac, std::span<std::byte> reply) {
  if (reply.size() < kAnswerBytesMin) return 0;
  if (classify_other(request, interface, own_mac, {}) != Verdict::kAnswer) return 0;
  const size_t header_bytes = ethernet_bytes(interface);
  PBOX_DCHECK(request.size() > header_bytes);
  const uint16_t type = load16(request.data() + header_bytes - 2);
  MacAddress sender_mac;
  std::memcpy(sender_mac.data(), request.data() + ethernet::kSource, sender_mac.size());
  std::byte* at = write_ethernet(reply.data(), sender_mac, own_mac, interface.vlan, type);

  auto packet = request.subspan(header_bytes);
  if (type == ethernet::kTypeArp) {
    return finish(reply, answer_arp(at, packet.data(), own_mac));
  }
  PBOX_DCHECK(packet_bytes_of(packet.data(), type) <= packet.size());  // classify() checked it
  packet = packet.first(packet_bytes_of(packet.data(), type));
  if (packet.size() > interface.mtu || header_bytes + packet.size() > reply.size()) return 0;
  return finish(reply, type == ethernet::kTypeIpv4 ? answer_ipv4(at, packet)
                                                   : answer_ipv6(at, packet, own_mac));
}

size_t solicit(const IpAddress& neighbour, const std::optional<MacAddress>& known_mac,
               const Interface& interface, const MacAddress& own_mac, std::span<std::byte> frame) {
  const auto own = interface.local_address_for(neighbour, own_mac);
  if (!own || frame.size() < kAnswerBytesMin) return 0;
  if (!neighbour.ipv6) {
    std::byte* at = write_ethernet(frame.data(), known_mac.value_or(kBroadcastMac), own_mac,
                                   interface.vlan, ethernet::kTypeArp);
    return finish(frame, write_arp(at, {.operation = arp::kRequest,
                                        .sender_mac = own_mac,
                                        .sender = *own,
                                        .target_mac = {},
                                        .target = neighbour}));
  }
  const IpAddress destination = known_mac ? neighbour : solicited_node_address(neighbour);
  const MacAddress destination_mac = known_mac ? *known_mac : multicast_mac(destination);
  std::byte* at =
      write_ethernet(frame.data(), destination_mac, own_mac, interface.vlan, ethernet::kTypeIpv6);
  at = write_ipv6(at, kAdvertisementBytes, ipv6::kHopsOnLink, *own, destination);
  return finish(frame, write_discovery(at, icmpv6::kNeighbourSolicitation, {}, neighbour,
                                       icmpv6::kOptionSourceLinkLayer, own_mac));
}

}  // namespace pbox::nic
