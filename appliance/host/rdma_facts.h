// Which RDMA devices the kernel has. Private to appliance/.
#pragma once

#include <string>
#include <vector>

#include "appliance/host/facts.h"

namespace pbox::appliance {

// From sysfs and /dev below `root` ("" for this machine's). A device of software has no node of its
// own: it has that of its network interface, if `nics` knows it.
std::vector<RdmaFacts> read_rdma(const std::string& root, const std::vector<Nic>& nics);

}  // namespace pbox::appliance
