// ARP and neighbour discovery as received. What classify_other and answer call; others want
// receive.h.
#pragma once

#include <optional>
#include <span>

#include "nic/ethernet/receive.h"

namespace pbox::nic {

// `frame`: from another station's MAC. `packet`: the ARP packet in it, padding included. kAnswer
// and kLearn, or why not; sets `claim` if the packet says who its sender is. Any core.
Verdict read_arp(std::span<const std::byte> frame, std::span<const std::byte> packet,
                 const Interface& interface, const MacAddress& own_mac,
                 std::optional<NeighbourClaim>& claim);

// The same for a neighbour solicitation or advertisement. `packet`: the IPv6 packet in the frame,
// of at least kBytes of ipv6 and icmp, its lengths and its checksum verified.
Verdict read_neighbour_discovery(std::span<const std::byte> frame,
                                 std::span<const std::byte> packet, const Interface& interface,
                                 const MacAddress& own_mac, std::optional<NeighbourClaim>& claim);

}  // namespace pbox::nic
