// The RDMA devices that the kernel lists. Private to appliance/.
#pragma once

#include <string>
#include <vector>

#include "appliance/host/facts.h"

namespace pbox::host {

// Reads sysfs and /dev below `root`, which is empty for this machine. A software device (Soft-RoCE)
// has no NUMA node: it gets the node of its network interface if `nics` lists that.
std::vector<RdmaFacts> read_rdma(const std::string& root, const std::vector<Nic>& nics);

}  // namespace pbox::host
