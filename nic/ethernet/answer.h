// What a host must say on its own account so that others can reach it: answers to requests, and
// requests for the MAC of a neighbour. Frames are written whole, padded to Ethernet's least length;
// the interface's VLAN tag is put in. Any core; no state, no allocation.
#pragma once

#include <optional>
#include <span>

#include "nic/ethernet/interface.h"

namespace pbox::nic {

// Bytes that every answer but an echo reply and every solicitation fits into.
inline constexpr size_t kAnswerBytesMin = 90;

// The answer to a frame that classify() calls kAnswer: an ARP reply, a neighbour advertisement, or
// an echo reply. Returns its bytes; 0, and nothing is to be sent, if the frame is another one, or
// if the answer would exceed `reply` or the MTU. It goes to the station that asked, to nobody else,
// and is not longer than max(the request, kAnswerBytesMin). `reply` must not overlap the request.
//
// Nothing here limits how often: a caller answers so many per burst and drops the others.
size_t answer(std::span<const std::byte> request, const Interface& interface,
              const MacAddress& own_mac, std::span<std::byte> reply);

// Asks for the MAC of a neighbour on link: everybody (IPv6: its solicited-node group), or, to see
// that a MAC still holds, its owner alone. Returns the frame's bytes, at most kAnswerBytesMin; 0 if
// the interface has no address of the family or `frame` is shorter than that.
size_t solicit(const IpAddress& neighbour, const std::optional<MacAddress>& known_mac,
               const Interface& interface, const MacAddress& own_mac, std::span<std::byte> frame);

}  // namespace pbox::nic
