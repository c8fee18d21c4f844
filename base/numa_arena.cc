#include "base/numa_arena.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace pbox {
namespace {

constexpr size_t kHugepageBytes = 2u << 20;

// The raw system call: base needs no library for one call, and a kernel without NUMA says ENOSYS.
bool bind_to_node(void* address, size_t bytes, int node) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[16] = {};
  if (node < 0 || static_cast<size_t>(node) >= kBits * 16) return false;
  mask[static_cast<size_t>(node) / kBits] = 1ul << (static_cast<size_t>(node) % kBits);
  return syscall(SYS_mbind, address, bytes, MPOL_BIND, mask, kBits * 16, MPOL_MF_STRICT) == 0;
}

}  // namespace

NumaArena::~NumaArena() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<NumaArena> NumaArena::create(size_t bytes, int node) {
  NumaArena arena;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  const size_t size =
      align_up(bytes == 0 ? 1 : bytes, bytes >= kHugepageBytes ? kHugepageBytes : 4096);
  void* address = MAP_FAILED;
  if (size >= kHugepageBytes) {
    address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB, -1, 0);
    arena.has_hugepages_ = address != MAP_FAILED;
  }
  if (address == MAP_FAILED) {
    address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, -1, 0);
  }
  if (address == MAP_FAILED) {
    return system_error("cannot map " + std::to_string(size) + " bytes of memory", errno);
  }
  arena.data_ = static_cast<std::byte*>(address);
  arena.size_ = size;
  if (!arena.has_hugepages_ && size >= kHugepageBytes) madvise(address, size, MADV_HUGEPAGE);
  if (node != kAnyNumaNode) {
    if (!bind_to_node(address, size, node) && errno != ENOSYS) {
      return system_error("cannot bind memory to NUMA node " + std::to_string(node), errno);
    }
    arena.node_ = node;
  }
  return arena;
}

std::byte* NumaArena::take(size_t bytes) {
  const size_t start = align_up(taken_, kCacheLineBytes);
  PBOX_CHECK(start + bytes <= size_);
  taken_ = start + bytes;
  return data_ + start;
}

}  // namespace pbox
