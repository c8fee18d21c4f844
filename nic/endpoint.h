// An IP address and UDP port as a value: the source or destination of a packet.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace pbox::nic {

struct Endpoint {
  std::array<uint8_t, 16> address{};  // network order; an IPv4 address fills the first 4 bytes
  uint32_t scope_id = 0;              // interface index; IPv6 link-local addresses only
  uint16_t port = 0;                  // host byte order
  bool ipv6 = false;

  bool operator==(const Endpoint&) const = default;
  bool is_loopback() const;  // in 127.0.0.0/8, or ::1
};

// Returns whether two endpoints have the same address, whatever their ports. An IPv4 address equals
// its mapped form (::ffff:a.b.c.d), in which a dual-stack socket shows it.
bool same_host(const Endpoint& a, const Endpoint& b);

// Returns a key for bounds that hold per source: the bytes of an IPv4 address, or the network (the
// first 8 bytes) of an IPv6 address, because a host may have all addresses of it.
std::string source_of(const Endpoint& peer);

// Returns whether an endpoint names a lane of shared memory (nic/shm) instead of a UDP address. Its
// address is then an IPv6 multicast address of a reserved scope.
inline bool is_lane(const Endpoint& endpoint) {
  return endpoint.ipv6 && endpoint.address[0] == 0xff && endpoint.address[1] == 0x0f;
}
// Returns the endpoint that names a lane.
Endpoint lane_endpoint(uint16_t index, uint32_t number);

// This host's address on a path to a peer, in the form of Endpoint::address and of the peer's
// address family. All zero: unknown.
using LocalAddress = std::array<uint8_t, 16>;
inline constexpr LocalAddress kNoLocalAddress{};

// Parses a numeric address, such as "127.0.0.1" or "::1"; it resolves no names. Any thread.
Result<Endpoint> parse_endpoint(const std::string& address, uint16_t port);

// Returns the address and port, such as "127.0.0.1:9542" or "[::1]:9542".
std::string to_string(const Endpoint& endpoint);
// Returns the address alone, without brackets.
std::string address_string(const Endpoint& endpoint);

}  // namespace pbox::nic
