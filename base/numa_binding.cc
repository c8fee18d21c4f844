// The functions that need libnuma, in a file of their own: a program that never binds memory to a
// node, such as one that loads libpbox.so, does not link this file and does not load libnuma.
#include <numa.h>
#include <numaif.h>

#include <cerrno>
#include <memory>

#include "base/numa_arena.h"

namespace pbox {
namespace {

struct NodeMaskDeleter {
  void operator()(bitmask* mask) const { numa_bitmask_free(mask); }
};

Error bind_error(int node, int error_number) {
  return system_error("cannot bind memory to NUMA node " + std::to_string(node), error_number);
}

}  // namespace

Status bind_to_node(void* address, size_t bytes, int node) {
  PBOX_CHECK(node >= 0);
  if (numa_available() < 0) return ok_status();
  const std::unique_ptr<bitmask, NodeMaskDeleter> nodes(numa_allocate_nodemask());
  if (static_cast<unsigned long>(node) >= nodes->size) return bind_error(node, EINVAL);
  numa_bitmask_setbit(nodes.get(), static_cast<unsigned>(node));
  // numa_tonode_memory() would report no error to its caller. The kernel ignores the last bit of
  // the mask, hence size + 1.
  if (mbind(address, bytes, MPOL_BIND, nodes->maskp, nodes->size + 1, MPOL_MF_STRICT) == 0) {
    return ok_status();
  }
  // Some containers forbid mbind only. A bind without MPOL_MF_MOVE_ALL has no other cause of EPERM.
  if (errno == EPERM || errno == ENOSYS) return ok_status();
  return bind_error(node, errno);
}

Result<NumaArena> NumaArena::create(size_t bytes, int node, Hugepages use, Sharing sharing) {
  return create(bytes, node, use, sharing, node == kAnyNumaNode ? nullptr : bind_to_node);
}

}  // namespace pbox
