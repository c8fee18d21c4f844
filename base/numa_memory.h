// Where memory lies that is mapped by others than NumaArena.
#pragma once

#include <cstddef>

namespace pbox {

// Pages of this mapping that are touched from now on come from `node`, and from no other. False,
// with errno: no such node, or a kernel without NUMA (ENOSYS).
bool bind_to_node(void* address, size_t bytes, int node);

}  // namespace pbox
