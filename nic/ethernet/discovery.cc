#include "nic/ethernet/discovery.h"

#include "base/check.h"

namespace pbox::nic {
namespace {

MacAddress mac_at(const std::byte* at) {
  MacAddress mac;
  std::memcpy(mac.data(), at, mac.size());
  return mac;
}

// Returns whether the frame comes from this MAC.
bool is_sender(const MacAddress& mac, std::span<const std::byte> frame) {
  PBOX_DCHECK(frame.size() >= ethernet::kBytes);
  return mac == mac_at(frame.data() + ethernet::kSource);
}

// Reads the options of neighbour discovery (RFC 4861 section 4.6). Sets `link_layer` to the address
// in the option of type `wanted` and skips other options. Returns false if lengths are inconsistent
// or the wanted option is malformed or repeated.
bool read_options(std::span<const std::byte> options, std::byte wanted,
                  std::optional<MacAddress>& link_layer) {
  while (!options.empty()) {
    if (options.size() < 2) return false;
    const size_t bytes = 8 * std::to_integer<size_t>(options[1]);
    if (bytes == 0 || bytes > options.size()) return false;
    if (options[0] == wanted) {
      if (bytes != icmpv6::kLinkLayerOptionBytes || link_layer) return false;
      link_layer = mac_at(options.data() + 2);
    }
    options = options.subspan(bytes);
  }
  return true;
}

// The fields of a well-formed message.
struct Message {
  IpAddress source;
  IpAddress destination;
  IpAddress target;
  std::byte flags{};
  std::optional<MacAddress> link_layer;
};

Verdict read_solicitation(std::span<const std::byte> frame, const Message& message,
                          const Interface& interface, const MacAddress& own_mac,
                          std::optional<NeighbourClaim>& claim) {
  if (!interface.is_own(message.target, own_mac)) return Verdict::kNotForUs;
  const bool to_group = message.destination == solicited_node_address(message.target);
  if (!to_group && !interface.is_own(message.destination, own_mac)) return Verdict::kNotForUs;
  // Duplicate address detection: a host without an address wants to use ours.
  if (message.source == IpAddress{.bytes = {}, .ipv6 = true}) {
    return to_group && !message.link_layer ? Verdict::kAnswer : Verdict::kMalformed;
  }
  if (!interface.is_peer(message.source, own_mac) || !interface.is_on_link(message.source)) {
    return Verdict::kSource;
  }
  if (!message.link_layer) return Verdict::kAnswer;
  if (!is_sender(*message.link_layer, frame)) return Verdict::kSource;
  PBOX_DCHECK(is_unicast(*message.link_layer));  // the frame's source, which is verified
  claim = {.address = message.source, .mac = *message.link_layer, .is_request_to_us = true};
  return Verdict::kAnswer;
}

Verdict read_advertisement(std::span<const std::byte> frame, const Message& message,
                           const Interface& interface, const MacAddress& own_mac,
                           std::optional<NeighbourClaim>& claim) {
  const bool solicited = (message.flags & icmpv6::kFlagSolicited) != std::byte{0};
  if (message.destination == all_nodes_address()) {
    if (solicited) return Verdict::kMalformed;
  } else if (!interface.is_own(message.destination, own_mac)) {
    return Verdict::kNotForUs;
  }
  for (const IpAddress& address : {message.source, message.target}) {
    if (!interface.is_peer(address, own_mac) || !interface.is_on_link(address)) {
      return Verdict::kSource;
    }
  }
  // The answer to a unicast solicitation may omit the option.
  const MacAddress mac = message.link_layer.value_or(mac_at(frame.data() + ethernet::kSource));
  if (!is_sender(mac, frame)) return Verdict::kSource;
  const bool may_replace =
      message.link_layer && (message.flags & icmpv6::kFlagOverride) != std::byte{0};
  PBOX_DCHECK(is_unicast(mac));
  claim = {
      .address = message.target, .mac = mac, .is_request_to_us = false, .may_replace = may_replace};
  return Verdict::kLearn;
}

}  // namespace

Verdict read_arp(std::span<const std::byte> frame, std::span<const std::byte> packet,
                 const Interface& interface, const MacAddress& own_mac,
                 std::optional<NeighbourClaim>& claim) {
  PBOX_DCHECK(frame.size() >= ethernet::kBytes && !claim);
  const std::byte* bytes = packet.data();
  if (packet.size() < arp::kBytes || load64(bytes) >> 16 != arp::kPrefix) {
    return Verdict::kMalformed;
  }
  const uint16_t operation = load16(bytes + arp::kOperation);
  if (operation != arp::kRequest && operation != arp::kReply) return Verdict::kMalformed;
  const IpAddress sender = ipv4_address(bytes + arp::kSenderIp);
  const IpAddress target = ipv4_address(bytes + arp::kTargetIp);
  const bool targets_us = interface.is_own(target, own_mac);
  const bool gratuitous = sender == target;
  if (!targets_us && !gratuitous) return Verdict::kNotForUs;

  const MacAddress destination = mac_at(frame.data() + ethernet::kDestination);
  const bool to_us = destination == own_mac;
  if (!to_us && destination != kBroadcastMac) return Verdict::kNotForUs;
  const MacAddress mac = mac_at(bytes + arp::kSenderMac);
  if (!is_sender(mac, frame)) return Verdict::kSource;
  // A probe (RFC 5227): a host without an address wants to use ours.
  if (operation == arp::kRequest && targets_us && sender == IpAddress{}) return Verdict::kAnswer;
  if (!interface.is_peer(sender, own_mac) || !interface.is_on_link(sender)) {
    return Verdict::kSource;
  }
  if (operation == arp::kReply && !gratuitous &&
      (!to_us || mac_at(bytes + arp::kTargetMac) != own_mac)) {
    return Verdict::kNotForUs;
  }
  const bool is_request_to_us = operation == arp::kRequest && targets_us;
  PBOX_DCHECK(is_unicast(mac));
  claim = {.address = sender, .mac = mac, .is_request_to_us = is_request_to_us};
  return is_request_to_us ? Verdict::kAnswer : Verdict::kLearn;
}

Verdict read_neighbour_discovery(std::span<const std::byte> frame,
                                 std::span<const std::byte> packet, const Interface& interface,
                                 const MacAddress& own_mac, std::optional<NeighbourClaim>& claim) {
  PBOX_DCHECK(packet.size() >= ipv6::kBytes + icmp::kBytes && !claim);
  const std::byte* ip = packet.data();
  const auto icmp = packet.subspan(ipv6::kBytes);
  if (ip[ipv6::kHopLimit] != ipv6::kHopsOnLink || icmp[icmp::kCode] != std::byte{0} ||
      icmp.size() < icmpv6::kOptions || !is_unicast_ipv6(icmp.data() + icmpv6::kTarget)) {
    return Verdict::kMalformed;
  }
  Message message{.source = ipv6_address(ip + ipv6::kSource),
                  .destination = ipv6_address(ip + ipv6::kDestination),
                  .target = ipv6_address(icmp.data() + icmpv6::kTarget),
                  .flags = icmp[icmpv6::kFlags],
                  .link_layer = std::nullopt};
  const bool solicitation = icmp[icmp::kType] == icmpv6::kNeighbourSolicitation;
  const std::byte wanted =
      solicitation ? icmpv6::kOptionSourceLinkLayer : icmpv6::kOptionTargetLinkLayer;
  if (!read_options(icmp.subspan(icmpv6::kOptions), wanted, message.link_layer)) {
    return Verdict::kMalformed;
  }
  return solicitation ? read_solicitation(frame, message, interface, own_mac, claim)
                      : read_advertisement(frame, message, interface, own_mac, claim);
}

}  // namespace pbox::nic
