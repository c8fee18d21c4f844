// Conversion between Endpoint and sockaddr, and the prefix length of a netmask.
#pragma once

#include <sys/socket.h>

#include "nic/endpoint.h"

namespace pbox::nic {

// Writes the address and returns its length in bytes. Any core; no allocation.
socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage& address);
// Returns an all-zero endpoint if the address is neither IPv4 nor IPv6.
Endpoint from_sockaddr(const sockaddr_storage& address);
// Returns the number of bits of a netmask, which has the family of its address. Any thread.
uint8_t prefix_length(const sockaddr& netmask, bool ipv6);

// Returns whether a socket can be bound to this address, whatever the port.
bool host_has_address(const Endpoint& endpoint);

}  // namespace pbox::nic
