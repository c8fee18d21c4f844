// Asks the kernel by which interface packets leave.
#pragma once

#include <string>

#include "nic/endpoint.h"

namespace pbox::host {

// Returns the interface by which packets from `own`, an address of this host, leave towards hosts
// beyond routers; empty if there is no such route. Any thread.
std::string way_out_of(const nic::Endpoint& own);

}  // namespace pbox::host
