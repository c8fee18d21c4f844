// MAC and IP addresses as values, and interface addresses with their networks. All functions are
// pure and do not allocate, except those that return text; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/ethernet/format.h"

namespace pbox::nic {

using MacAddress = std::array<uint8_t, 6>;

inline constexpr MacAddress kBroadcastMac = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

// Returns whether the MAC belongs to one station: it is neither a group's (broadcast, multicast)
// nor zero.
inline bool is_unicast(const MacAddress& mac) {
  return (mac[0] & 1) == 0 && mac != MacAddress{};
}

struct IpAddress {
  std::array<uint8_t, 16> bytes{};  // network order; IPv4 fills the first 4, the others are 0
  bool ipv6 = false;

  bool operator==(const IpAddress&) const = default;
};

// Read an address from 4 or 16 bytes of a frame.
inline IpAddress ipv4_address(const void* bytes) {
  // The address is assembled in whole words, because a 16-byte load just after a 4-byte store would
  // stall.
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  const uint64_t words[2] = {word, 0};  // little endian, as format.h asserts
  IpAddress address;
  std::memcpy(address.bytes.data(), words, sizeof(words));
  return address;
}
inline IpAddress ipv6_address(const void* bytes) {
  IpAddress address;
  std::memcpy(address.bytes.data(), bytes, 16);
  address.ipv6 = true;
  return address;
}

inline IpAddress ip_address(const Endpoint& endpoint) {
  return {.bytes = endpoint.address, .ipv6 = endpoint.ipv6};
}
// The scope is 0: the caller knows which interface the address belongs to.
inline Endpoint endpoint_of(const IpAddress& address, uint16_t port) {
  return {.address = address.bytes, .scope_id = 0, .port = port, .ipv6 = address.ipv6};
}

// Return whether a single station may have this address. Unspecified, loopback, multicast,
// broadcast and reserved addresses are excluded (IPv4 0/8, 127/8, 224/3; IPv6 ::/64, ff00::/8).
// `bytes` are in network order.
inline bool is_unicast_ipv4(const void* bytes) {
  const uint8_t first = static_cast<const uint8_t*>(bytes)[0];
  return first != 0 && first != 127 && first < 224;
}
inline bool is_unicast_ipv6(const void* bytes) {
  return static_cast<const uint8_t*>(bytes)[0] != 0xff && load64(bytes) != 0;
}

inline bool is_link_local(const IpAddress& address) {
  return address.ipv6 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
}
// Returns fe80:: with the interface identifier that is made from the MAC (RFC 4291, appendix A).
IpAddress link_local_address(const MacAddress& mac);

IpAddress all_nodes_address();  // ff02::1, all hosts of the link

// Return the group address that a solicitation of an IPv6 address is sent to, ff02::1:ffXX:XXXX,
// and the MAC of such a group. A port must accept frames to that MAC for each of its own IPv6
// addresses.
IpAddress solicited_node_address(const IpAddress& target);
MacAddress multicast_mac(const IpAddress& ipv6_group);

// An address of an interface, with the prefix length of its network.
struct InterfaceAddress {
  IpAddress address;
  uint8_t prefix_length = 0;  // in [0, 32] with IPv4, in [0, 128] with IPv6

  bool operator==(const InterfaceAddress&) const = default;
  // Returns whether the other address belongs to the same network.
  bool contains(const IpAddress& other) const;
};

// Parses "10.0.0.1/24" or "fd00::1/64". Refuses addresses that do not belong to a single host, such
// as the network's own. Errors quote the text.
Result<InterfaceAddress> parse_interface_address(const std::string& text);

std::string to_string(const MacAddress& mac);            // "02:00:5e:10:00:01"
std::string to_string(const IpAddress& address);         // "10.0.0.1", "fd00::1"
std::string to_string(const InterfaceAddress& address);  // "10.0.0.1/24"

}  // namespace pbox::nic
