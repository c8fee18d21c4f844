// Classification of received ARP and neighbour discovery packets. Only classify_other() in
// receive.cc calls this; all others use receive.h.
#pragma once

#include <optional>
#include <span>

#include "nic/ethernet/receive.h"

namespace pbox::nic {

// Classifies an ARP packet. `frame` comes from the unicast MAC of another station. `packet` is the
// ARP packet in the frame, with padding. Returns kAnswer, kLearn, or the reason to drop the frame.
// Sets `claim`, which must be empty, if the packet states its sender's address. Any core.
Verdict read_arp(std::span<const std::byte> frame, std::span<const std::byte> packet,
                 const Interface& interface, const MacAddress& own_mac,
                 std::optional<NeighbourClaim>& claim);

// Classifies a neighbour solicitation or advertisement in the same way. `packet` is the IPv6 packet
// in the frame. The caller has verified its lengths, at least ipv6::kBytes + icmp::kBytes, and its
// checksum.
Verdict read_neighbour_discovery(std::span<const std::byte> frame,
                                 std::span<const std::byte> packet, const Interface& interface,
                                 const MacAddress& own_mac, std::optional<NeighbourClaim>& claim);

}  // namespace pbox::nic
