// Endpoint <-> sockaddr.
#pragma once

#include <sys/socket.h>

#include "nic/endpoint.h"

namespace pbox::nic {

// Writes the address and returns its length. Any core; no allocation.
socklen_t to_sockaddr(const Endpoint& endpoint, sockaddr_storage& address);
Endpoint from_sockaddr(const sockaddr_storage& address);

}  // namespace pbox::nic
