// The configuration of one network interface: addresses, gateways, VLAN, MTU. Several links
// (devices, each with its own MAC) may share one interface. Many threads read it; no thread changes
// it once packets flow.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "nic/ethernet/address.h"

namespace pbox::nic {

struct Interface {
  std::vector<InterfaceAddress> addresses;
  std::optional<IpAddress> gateway4;
  std::optional<IpAddress> gateway6;
  uint16_t vlan = 0;    // 802.1Q id, in [1, 4094]; 0: untagged
  uint32_t mtu = 1500;  // largest IP packet in bytes, its header included

  // Return whether a packet to this address is for us. `bytes` points to 4 or 16 bytes in network
  // order. The link-local address of `own_mac` counts as one of our addresses. Any core.
  bool is_own_ipv4(const void* bytes) const;
  bool is_own_ipv6(const void* bytes, const MacAddress& own_mac) const;
  bool is_own(const IpAddress& address, const MacAddress& own_mac) const;

  // Return whether another station may send from this address. It must be unicast, not our own, and
  // neither the first nor the last address of one of our IPv4 networks (network and broadcast).
  bool is_peer_ipv4(const void* bytes) const;
  bool is_peer_ipv6(const void* bytes, const MacAddress& own_mac) const;
  bool is_peer(const IpAddress& address, const MacAddress& own_mac) const;

  // Returns whether the address belongs to one of our networks or is IPv6 link-local.
  bool is_on_link(const IpAddress& address) const;

  // Returns the source address of packets to `remote`: our address in the network of the next hop,
  // or else our first address of the family. Returns nothing if we have none of the family.
  std::optional<IpAddress> local_address_for(const IpAddress& remote,
                                             const MacAddress& own_mac) const;

  // Returns the station that a packet to `remote` is sent to: `remote` itself if it is on the link,
  // or else the gateway of the family. Returns nothing if there is no gateway, or if no station can
  // have the address.
  std::optional<IpAddress> next_hop(const IpAddress& remote, const MacAddress& own_mac) const;
};

// Checks that addresses belong to single hosts, that gateways are on the link and of the right
// family, and that VLAN and MTU are in range. The other functions of this folder rely on it. Errors
// name the field and its value. Control thread.
Status validate(const Interface& interface);

// --- per packet ---

inline bool Interface::is_own_ipv4(const void* bytes) const {
  const uint32_t wanted = load32(bytes);
  for (const InterfaceAddress& own : addresses) {
    if (!own.address.ipv6 && load32(own.address.bytes.data()) == wanted) return true;
  }
  return false;
}

inline bool Interface::is_own_ipv6(const void* bytes, const MacAddress& own_mac) const {
  for (const InterfaceAddress& own : addresses) {
    if (own.address.ipv6 && std::memcmp(own.address.bytes.data(), bytes, 16) == 0) return true;
  }
  return load16(bytes) == 0xfe80 && link_local_address(own_mac) == ipv6_address(bytes);
}

inline bool Interface::is_peer_ipv4(const void* bytes) const {
  if (!is_unicast_ipv4(bytes)) return false;
  const uint32_t peer = load32(bytes);
  for (const InterfaceAddress& own : addresses) {
    if (own.address.ipv6) continue;
    const uint32_t difference = peer ^ load32(own.address.bytes.data());
    if (difference == 0) return false;
    // Networks of one or two addresses have no network or broadcast address (RFC 3021).
    if (own.prefix_length > 30) continue;
    const uint32_t host_mask = 0xffffffffu >> own.prefix_length;
    const uint32_t host = peer & host_mask;
    if ((difference & ~host_mask) == 0 && (host == 0 || host == host_mask)) return false;
  }
  return true;
}

inline bool Interface::is_peer_ipv6(const void* bytes, const MacAddress& own_mac) const {
  return is_unicast_ipv6(bytes) && !is_own_ipv6(bytes, own_mac);
}

}  // namespace pbox::nic
