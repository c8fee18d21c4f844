#include "nic/ethernet/address.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

namespace pbox::nic {
namespace {

// Returns false if the host bits are all 0 (the network's own address) or all 1 (its broadcast
// address). Networks with at most two addresses have neither.
bool is_ipv4_host_address(const InterfaceAddress& address) {
  if (address.prefix_length > 30) return true;
  const uint32_t host_mask = 0xffffffffu >> address.prefix_length;
  const uint32_t host = load32(address.address.bytes.data()) & host_mask;
  return host != 0 && host != host_mask;
}

std::optional<uint8_t> parse_prefix_length(const std::string& text, uint8_t bits) {
  uint8_t length = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, length);
  if (parsed.ec != std::errc{} || parsed.ptr != end || length > bits) return std::nullopt;
  return length;
}

}  // namespace

IpAddress link_local_address(const MacAddress& mac) {
  const std::array<uint8_t, 16> bytes = {
      0xfe,   0x80,   0,    0,    0,      0,      0,     0, static_cast<uint8_t>(mac[0] ^ 2),
      mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
  return {.bytes = bytes, .ipv6 = true};
}

IpAddress all_nodes_address() {
  IpAddress group{.bytes = {0xff, 2}, .ipv6 = true};
  group.bytes[15] = 1;
  return group;
}

IpAddress solicited_node_address(const IpAddress& target) {
  IpAddress group{.bytes = {0xff, 2}, .ipv6 = true};
  group.bytes[11] = 1;
  group.bytes[12] = 0xff;
  std::copy(target.bytes.begin() + 13, target.bytes.end(), group.bytes.begin() + 13);
  return group;
}

MacAddress multicast_mac(const IpAddress& ipv6_group) {
  MacAddress mac = {0x33, 0x33};
  std::copy(ipv6_group.bytes.begin() + 12, ipv6_group.bytes.end(), mac.begin() + 2);
  return mac;
}

bool InterfaceAddress::contains(const IpAddress& other) const {
  if (other.ipv6 != address.ipv6) return false;
  const size_t whole_bytes = prefix_length / 8;
  if (std::memcmp(address.bytes.data(), other.bytes.data(), whole_bytes) != 0) return false;
  const int bits = prefix_length % 8;
  if (bits == 0) return true;
  return (address.bytes[whole_bytes] ^ other.bytes[whole_bytes]) >> (8 - bits) == 0;
}

Result<InterfaceAddress> parse_interface_address(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidArgument, "interface address '" + text + "' " + why};
  };
  const size_t slash = text.find('/');
  if (slash == std::string::npos) {
    return refuse("has no prefix length; write it like 10.0.0.1/24 or fd00::1/64");
  }
  const auto endpoint = parse_endpoint(text.substr(0, slash), 0);
  if (!endpoint.ok()) return refuse("is invalid: " + endpoint.error().message);
  InterfaceAddress address{.address = ip_address(*endpoint)};
  const uint8_t bits = endpoint->ipv6 ? 128 : 32;
  const auto length = parse_prefix_length(text.substr(slash + 1), bits);
  if (!length) {
    return refuse("has a prefix length that is not a number from 0 to " + std::to_string(bits));
  }
  address.prefix_length = *length;
  const uint8_t* bytes = address.address.bytes.data();
  const bool is_host = endpoint->ipv6 ? is_unicast_ipv6(bytes)
                                      : is_unicast_ipv4(bytes) && is_ipv4_host_address(address);
  if (!is_host) {
    return refuse("is not the address of a single host; give the host's own, not the network's");
  }
  return address;
}

std::string to_string(const MacAddress& mac) {
  char text[18];
  std::snprintf(text, sizeof(text), "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3],
                mac[4], mac[5]);
  return text;
}

std::string to_string(const IpAddress& address) {
  return address_string(endpoint_of(address, 0));
}

std::string to_string(const InterfaceAddress& address) {
  return to_string(address.address) + "/" + std::to_string(address.prefix_length);
}

}  // namespace pbox::nic
