// Link and IP addresses as values, and the address of an interface with its network.
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

// One station's: neither a group (broadcast, multicast) nor zero.
inline bool is_unicast(const MacAddress& mac) {
  return (mac[0] & 1) == 0 && mac != MacAddress{};
}

struct IpAddress {
  std::array<uint8_t, 16> bytes{};  // IPv4 in the first 4, the others 0
  bool ipv6 = false;

  bool operator==(const IpAddress&) const = default;
};

// `bytes`: 4 or 16 of a frame, in its order. Any core; no allocation.
inline IpAddress ipv4_address(const void* bytes) {
  // Put together in whole words: a reader of 16 bytes would wait for 4 that were just written.
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  const uint64_t words[2] = {word, 0};  // little endian, as nic/wire/header.h demands
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
// The scope is 0: which interface is meant is known to whoever holds the frame.
inline Endpoint endpoint_of(const IpAddress& address, uint16_t port) {
  return {.address = address.bytes, .scope_id = 0, .port = port, .ipv6 = address.ipv6};
}

// Whether one station may have this address: not the unspecified, loopback, multicast, broadcast or
// reserved ones (IPv4 0/8, 127/8, 224/3; IPv6 ::/64, ff00::/8). `bytes` as in a frame.
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
// fe80:: and the interface identifier made of the MAC (RFC 4291, appendix A).
IpAddress link_local_address(const MacAddress& mac);

IpAddress all_nodes_address();  // ff02::1

// Where a solicitation of an IPv6 address is sent: ff02::1:ffXX:XXXX, and the group MAC of it. A
// port lets frames to the MAC in for each of its own IPv6 addresses.
IpAddress solicited_node_address(const IpAddress& target);
MacAddress multicast_mac(const IpAddress& ipv6_group);

struct InterfaceAddress {
  IpAddress address;
  uint8_t prefix_length = 0;  // <= 32, or <= 128 with IPv6

  bool operator==(const InterfaceAddress&) const = default;
  // Whether the other address is of the same network.
  bool contains(const IpAddress& other) const;
};

// "10.0.0.1/24", "fd00::1/64": the address of one station, not of its network. Control thread.
Result<InterfaceAddress> parse_interface_address(const std::string& text);

std::string to_string(const MacAddress& mac);            // "02:00:5e:10:00:01"
std::string to_string(const IpAddress& address);         // "10.0.0.1", "fd00::1"
std::string to_string(const InterfaceAddress& address);  // "10.0.0.1/24"

}  // namespace pbox::nic
