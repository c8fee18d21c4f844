#include "nic/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>

namespace pbox::nic {

bool Endpoint::is_loopback() const {
  if (!ipv6) return address[0] == 127;
  return std::all_of(address.begin(), address.end() - 1, [](uint8_t byte) { return byte == 0; }) &&
         address[15] == 1;
}

namespace {

// Returns the endpoint without its port. A mapped IPv4 address becomes a plain one.
Endpoint host_of(Endpoint endpoint) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  endpoint.port = 0;
  auto& address = endpoint.address;
  if (!endpoint.ipv6 || !std::equal(kMapped.begin(), kMapped.end(), address.begin())) {
    return endpoint;
  }
  std::copy(address.begin() + kMapped.size(), address.end(), address.begin());
  std::fill(address.begin() + 4, address.end(), uint8_t{0});
  endpoint.ipv6 = false;
  endpoint.scope_id = 0;
  return endpoint;
}

}  // namespace

Endpoint lane_endpoint(uint16_t index, uint32_t number) {
  Endpoint endpoint{.scope_id = number, .port = index, .ipv6 = true};
  endpoint.address[0] = 0xff;
  endpoint.address[1] = 0x0f;
  return endpoint;
}

bool same_host(const Endpoint& a, const Endpoint& b) {
  return host_of(a) == host_of(b);
}

std::string source_of(const Endpoint& peer) {
  constexpr size_t kNetworkBytes = 8, kIpv4Bytes = 4;
  const Endpoint host = host_of(peer);
  const auto* bytes = reinterpret_cast<const char*>(host.address.data());
  return {bytes, host.ipv6 ? kNetworkBytes : kIpv4Bytes};
}

Result<Endpoint> parse_endpoint(const std::string& address, uint16_t port) {
  Endpoint endpoint;
  endpoint.port = port;
  if (inet_pton(AF_INET, address.c_str(), endpoint.address.data()) == 1) return endpoint;
  if (inet_pton(AF_INET6, address.c_str(), endpoint.address.data()) == 1) {
    endpoint.ipv6 = true;
    return endpoint;
  }
  return Error{ErrorCode::kInvalidArgument,
               "'" + address +
                   "' is not a numeric IPv4 or IPv6 address; give one such as 10.0.0.1 or fd00::1"};
}

std::string address_string(const Endpoint& endpoint) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(endpoint.ipv6 ? AF_INET6 : AF_INET, endpoint.address.data(), text, sizeof(text));
  return text;
}

std::string to_string(const Endpoint& endpoint) {
  const std::string text = address_string(endpoint);
  return (endpoint.ipv6 ? "[" + text + "]" : text) + ":" + std::to_string(endpoint.port);
}

}  // namespace pbox::nic
