// NUMA placement of memory that NumaArena did not map, such as a file in memory.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace pbox {

// Binds a mapping to `node`: pages touched from now on come from that node and from no other.
// `address` is page-aligned; `node` >= 0. Fails if the node does not exist or has pages of the
// mapping elsewhere already. Succeeds and changes nothing where NUMA is unavailable: the kernel has
// no NUMA support, or forbids its system calls (a container's seccomp filter). Control thread.
Status bind_to_node(void* address, size_t bytes, int node);

}  // namespace pbox
