// Frames that a host must send so that others can reach it: answers to requests, and requests for a
// neighbour's MAC. Frames are complete, with the interface's VLAN tag, and padded to Ethernet's
// minimum length. Any core; no state, no allocation.
#pragma once

#include <optional>
#include <span>

#include "nic/ethernet/interface.h"

namespace pbox::nic {

// Buffer size, in bytes, that is enough for every solicitation and for every answer except a long
// echo reply.
inline constexpr size_t kAnswerBytesMin = 90;

// Writes the answer to a frame for which classify() returns kAnswer: an ARP reply, a neighbour
// advertisement, or an echo reply. Returns the answer's length in bytes. Returns 0, and nothing
// must be sent, if the frame is any other, if `reply` is shorter than the answer or than
// kAnswerBytesMin, or if the answer would exceed the MTU. The answer goes only to the station that
// asked, and is at most max(length of the request, kAnswerBytesMin) long. The two must not overlap.
//
// The caller limits the rate: it answers a bounded number of requests per burst and drops the
// others.
size_t answer(std::span<const std::byte> request, const Interface& interface,
              const MacAddress& own_mac, std::span<std::byte> reply);

// Writes a request for the MAC of a neighbour on the link. Without `known_mac` it goes to all
// stations (IPv6: to the neighbour's solicited-node group). With `known_mac` it goes to that MAC
// alone, to confirm it. Returns the frame's length, at most kAnswerBytesMin; 0 if the interface has
// no address of the family, or `frame` is shorter than kAnswerBytesMin.
size_t solicit(const IpAddress& neighbour, const std::optional<MacAddress>& known_mac,
               const Interface& interface, const MacAddress& own_mac, std::span<std::byte> frame);

}  // namespace pbox::nic
