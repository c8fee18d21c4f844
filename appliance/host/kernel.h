// The host facts that hwloc does not have, read from the kernel: limits, addresses, interfaces.
// Private to appliance/.
#pragma once

#include <string>

#include "appliance/host/facts.h"

namespace pbox::host {

// Fills kernel, memory, limits, addresses, interfaces, routes, PCI, VFIO and RDMA devices, and
// is_live of `facts`. For NICs and nodes that `facts` already names, it also fills link speed, MTU,
// addresses and free hugepages.
void read_kernel_facts(HostFacts& facts);

// Returns the present speed of a network interface in Mbit/s; 0 if it is unknown or the link is
// down.
uint32_t link_mbps(const std::string& nic);

}  // namespace pbox::host
