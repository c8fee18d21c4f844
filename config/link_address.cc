#include "config/link_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>

#include "config/address.h"
#include "config/value.h"

namespace pbox::config {
namespace {

uint32_t whole_bits(const LinkAddress& address) {
  return 8 * static_cast<uint32_t>(address.bytes.size());
}

bool bit_at(const LinkAddress& address, uint32_t index) {
  return (address.bytes[index / 8] >> (7 - index % 8) & 1) != 0;
}

// Returns whether all bits after the prefix are `value`.
bool has_host_bits(const LinkAddress& address, bool value) {
  for (uint32_t bit = address.prefix_bits; bit < whole_bits(address); ++bit) {
    if (bit_at(address, bit) != value) return false;
  }
  return true;
}

}  // namespace

std::optional<LinkAddress> read_ip(const std::string& text) {
  LinkAddress address;
  address.bytes.resize(sizeof(in_addr));
  if (inet_pton(AF_INET, text.c_str(), address.bytes.data()) != 1) {
    address.bytes.resize(sizeof(in6_addr));
    if (inet_pton(AF_INET6, text.c_str(), address.bytes.data()) != 1) return std::nullopt;
  }
  address.prefix_bits = whole_bits(address);
  return address;
}

std::optional<LinkAddress> read_link_address(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  auto address = read_ip(text.substr(0, slash));
  const auto prefix_bits = read_number(text.substr(slash + 1));
  if (!address || !prefix_bits || *prefix_bits > whole_bits(*address)) return std::nullopt;
  address->prefix_bits = static_cast<uint32_t>(*prefix_bits);
  return address;
}

std::string print_ip(const LinkAddress& address) {
  const int family = address.bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, address.bytes.data(), text, sizeof(text));
  return text;
}

bool is_in_network_of(const LinkAddress& address, const LinkAddress& network) {
  if (address.bytes.size() != network.bytes.size()) return false;
  for (uint32_t bit = 0; bit < network.prefix_bits; ++bit) {
    if (bit_at(address, bit) != bit_at(network, bit)) return false;
  }
  return true;
}

bool is_station(const LinkAddress& address) {
  const std::string text = print_ip(address);
  if (is_wildcard_address(text) || is_loopback_address(text)) return false;
  if (address.bytes.size() == sizeof(in_addr)) {
    if (address.bytes[0] == 0 || address.bytes[0] >= 224) return false;  // multicast and reserved
    if (address.prefix_bits >= 31) return true;  // RFC 3021: such a network has no broadcast
    return !has_host_bits(address, false) && !has_host_bits(address, true);
  }
  in6_addr v6;
  std::copy(address.bytes.begin(), address.bytes.end(), v6.s6_addr);
  return !IN6_IS_ADDR_MULTICAST(&v6) && !IN6_IS_ADDR_LINKLOCAL(&v6) && !IN6_IS_ADDR_V4MAPPED(&v6);
}

}  // namespace pbox::config
