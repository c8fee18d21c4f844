#include "base/numa_arena.h"

#include <linux/mman.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>

#include "base/numa_memory.h"

namespace pbox {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugepageBytes = 2u << 20;

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

NumaArena::~NumaArena() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<NumaArena> NumaArena::map(size_t size, int node, int flags) {
  void* address =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (address == MAP_FAILED) {
    return system_error("cannot map " + std::to_string(size) + " bytes of memory", errno);
  }
  NumaArena arena;
  arena.data_ = static_cast<std::byte*>(address);
  arena.size_ = size;
  if (node == kAnyNumaNode) return arena;
  if (const Status bound = bind_to_node(address, size, node); !bound) return bound.error();
  arena.node_ = node;
  return arena;
}

Result<NumaArena> NumaArena::create(size_t bytes, int node, Hugepages use) {
  const bool is_large = bytes >= kHugepageBytes;
  const size_t size = align_up(bytes == 0 ? 1 : bytes, is_large ? kHugepageBytes : kPageBytes);
  if (is_large && use == Hugepages::kIfFree) {
    auto arena = map(size, node, MAP_HUGETLB | MAP_HUGE_2MB);
    // mmap reserves hugepages from the pool of the whole machine, but a page fault takes them from
    // the bound node. If that node has too few, the first touch kills the process by SIGBUS.
    // Populating the mapping here turns that into an error, and ordinary pages are used.
    if (arena && madvise(arena->data_, size, MADV_POPULATE_WRITE) == 0) {
      arena->has_hugepages_ = true;
      return arena;
    }
  }
  auto arena = map(size, node, MAP_NORESERVE);
  if (arena && is_large) madvise(arena->data_, size, MADV_HUGEPAGE);
  return arena;
}

std::byte* NumaArena::take(size_t bytes) {
  const size_t start = align_up(taken_, kCacheLineBytes);
  PBOX_CHECK(start + bytes <= size_);
  taken_ = start + bytes;
  return data_ + start;
}

}  // namespace pbox
