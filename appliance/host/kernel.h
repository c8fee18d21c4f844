// The part of the host facts that the kernel says outside hwloc: limits, addresses, interfaces.
// Private to appliance/.
#pragma once

#include <string>

#include "appliance/host/facts.h"

namespace pbox::appliance {

// Fills kernel, memory, limits, addresses, interfaces, PCI network devices and is_live of `facts`,
// and link speed, MTU and addresses of the NICs and free hugepages of the nodes that it already
// names.
void read_kernel_facts(HostFacts& facts);

}  // namespace pbox::appliance
