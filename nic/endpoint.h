// An IP address and UDP port as a value: where a packet came from and where it goes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace pbox::nic {

struct Endpoint {
  std::array<uint8_t, 16> address{};  // IPv4 in the first 4 bytes
  uint32_t scope_id = 0;              // IPv6 link-local only
  uint16_t port = 0;                  // host order
  bool ipv6 = false;

  bool operator==(const Endpoint&) const = default;
  bool is_loopback() const;
};

// Numeric addresses only: "127.0.0.1", "::1". Control thread.
Result<Endpoint> parse_endpoint(const std::string& address, uint16_t port);

// "127.0.0.1:9542", "[::1]:9542".
std::string to_string(const Endpoint& endpoint);
std::string address_string(const Endpoint& endpoint);

}  // namespace pbox::nic
