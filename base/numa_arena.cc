#include "base/numa_arena.h"

#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/numa_memory.h"

namespace pbox {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugepageBytes = 2u << 20;

}  // namespace

// The raw system call: base needs no library for one call, and a kernel without NUMA says ENOSYS.
bool bind_to_node(void* address, size_t bytes, int node) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[16] = {};
  // The kernel reads one bit less than it is told of.
  if (node < 0 || static_cast<size_t>(node) >= kBits * 16 - 1) {
    errno = EINVAL;
    return false;
  }
  mask[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
  return syscall(SYS_mbind, address, bytes, MPOL_BIND, mask, kBits * 16, MPOL_MF_STRICT) == 0;
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
  if (!bind_to_node(address, size, node) && errno != ENOSYS) {
    return system_error("cannot bind memory to NUMA node " + std::to_string(node), errno);
  }
  arena.node_ = node;
  return arena;
}

Result<NumaArena> NumaArena::create(size_t bytes, int node, Hugepages use) {
  const bool is_large = bytes >= kHugepageBytes;
  const size_t size = align_up(bytes == 0 ? 1 : bytes, is_large ? kHugepageBytes : kPageBytes);
  if (is_large && use == Hugepages::kIfFree) {
    auto arena = map(size, node, MAP_HUGETLB | MAP_HUGE_2MB);
    // The kernel reserves hugepages from the machine's pool but takes them from the bound node: one
    // that has too few would kill the pipeline by SIGBUS at its first touch. Touching all of them
    // here makes that an error, and then ordinary pages serve.
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
