// What a host knows of one of its networks. Plain values: several links (devices, each with a MAC
// of its own) may share one. Read by many threads, changed by none once packets flow.
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
  uint32_t mtu = 1500;  // of an IP packet, its header included

  // Whether a packet to this address is for us. `bytes` as in a frame, 4 or 16. Each MAC has its
  // link-local address too. Any core.
  bool is_own_ipv4(const void* bytes) const;
  bool is_own_ipv6(const void* bytes, const MacAddress& own_mac) const;
  bool is_own(const IpAddress& address, const MacAddress& own_mac) const;

  // Whether another station may speak from this address: a unicast one, not our own, nor the first
  // or the last of one of our IPv4 networks (which mean the network and all its hosts).
  bool is_peer_ipv4(const void* bytes) const;
  bool is_peer_ipv6(const void* bytes, const MacAddress& own_mac) const;
  bool is_peer(const IpAddress& address, const MacAddress& own_mac) const;

  // Whether the address is of one of our networks, or IPv6 link-local.
  bool is_on_link(const IpAddress& address) const;

  // The address that packets to `remote` come from: of the network of the next hop, else the first
  // of the family; nothing if there is none of the family.
  std::optional<IpAddress> local_address_for(const IpAddress& remote,
                                             const MacAddress& own_mac) const;

  // Whose MAC a packet to `remote` is sent to: its own if on link, else the family's gateway's;
  // nothing if there is none or nobody can have this address.
  std::optional<IpAddress> next_hop(const IpAddress& remote, const MacAddress& own_mac) const;
};

// Addresses of stations, gateways on link and of their family, VLAN and MTU in range. Everything in
// this folder takes it for granted. Control thread.
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
    // Networks of one or two addresses have none to spare (RFC 3021).
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
