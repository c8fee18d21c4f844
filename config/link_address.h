// An address with the network of its link: "10.0.0.1/24". Pure; any thread. Private to config/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pbox::config {

struct LinkAddress {
  std::vector<uint8_t> bytes;  // 4 or 16 bytes, in network byte order
  uint32_t prefix_bits = 0;    // in [0, 8 * bytes.size()]
};

// Reads an IPv4 or IPv6 literal. Its prefix is the whole address.
std::optional<LinkAddress> read_ip(const std::string& text);
// Reads a literal, '/' and the length of the prefix in bits.
std::optional<LinkAddress> read_link_address(const std::string& text);

std::string print_ip(const LinkAddress& address);  // without prefix, as inet_ntop writes it

bool is_in_network_of(const LinkAddress& address, const LinkAddress& network);

// Returns whether a device can have the address as its own. Multicast, reserved, loopback,
// wildcard, network and broadcast addresses are refused. So are IPv6 link-local ones, which mean
// nothing to a worker without an interface.
bool is_station(const LinkAddress& address);

}  // namespace pbox::config
