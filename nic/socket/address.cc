#include "nic/socket/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <bit>
#include <cstring>

namespace pbox::nic {

socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage& address) {
  if (endpoint.ipv6) {
    auto* six = reinterpret_cast<sockaddr_in6*>(&address);
    *six = {};
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(endpoint.port);
    six->sin6_scope_id = endpoint.scope_id;
    std::memcpy(&six->sin6_addr, endpoint.address.data(), 16);
    return sizeof(sockaddr_in6);
  }
  auto* four = reinterpret_cast<sockaddr_in*>(&address);
  *four = {};
  four->sin_family = AF_INET;
  four->sin_port = htons(endpoint.port);
  std::memcpy(&four->sin_addr, endpoint.address.data(), 4);
  return sizeof(sockaddr_in);
}

Endpoint from_sockaddr(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
    endpoint.ipv6 = true;
    endpoint.port = ntohs(six->sin6_port);
    endpoint.scope_id = six->sin6_scope_id;
    std::memcpy(endpoint.address.data(), &six->sin6_addr, 16);
  } else if (address.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&address);
    endpoint.port = ntohs(four->sin_port);
    std::memcpy(endpoint.address.data(), &four->sin_addr, 4);
  }
  return endpoint;
}

uint8_t prefix_length(const sockaddr& netmask, bool ipv6) {
  uint32_t words[4] = {};
  if (ipv6) {
    std::memcpy(words, &reinterpret_cast<const sockaddr_in6&>(netmask).sin6_addr, 16);
  } else {
    std::memcpy(words, &reinterpret_cast<const sockaddr_in&>(netmask).sin_addr, 4);
  }
  int bits = 0;
  for (const uint32_t word : words) bits += std::popcount(word);
  return static_cast<uint8_t>(bits);
}

bool host_has_address(const Endpoint& endpoint) {
  const int fd = socket(endpoint.ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // unknown
  Endpoint any_port = endpoint;
  any_port.port = 0;
  sockaddr_storage address{};
  const socklen_t length = to_sockaddr(any_port, address);
  const int refused = bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 ? 0 : errno;
  close(fd);
  return refused != EADDRNOTAVAIL;
}

}  // namespace pbox::nic
