#include "base/numa_arena.h"

#include <linux/memfd.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/memory_file.h"

namespace pbox {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugepageBytes = 2u << 20;

}  // namespace

size_t NumaArena::mapped_bytes(size_t bytes) {
  return align_up(bytes == 0 ? 1 : bytes, bytes >= kHugepageBytes ? kHugepageBytes : kPageBytes);
}

NumaArena::~NumaArena() {
  if (data_ != nullptr) munmap(data_, size_);
}

Result<NumaArena> NumaArena::map(size_t size, int flags, Sharing sharing, int node, Bind bind) {
  NumaArena arena;
  if (sharing == Sharing::kReadable) {
    const bool is_huge = (flags & MAP_HUGETLB) != 0;
    auto file = make_memory_file("pbox-results", size, is_huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    if (!file) return file.error();
    arena.file_ = std::move(*file);
    flags |= MAP_SHARED;
  } else {
    flags |= MAP_PRIVATE | MAP_ANONYMOUS;
  }
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, arena.file_.get(), 0);
  if (address == MAP_FAILED) {
    return system_error("cannot map " + std::to_string(size) + " bytes of memory", errno);
  }
  arena.data_ = static_cast<std::byte*>(address);
  arena.size_ = size;
  // A child made by fork() never uses the arena. Without this, fork() would copy pages that are
  // registered with an RDMA device, and the owner's next write to each other page would copy it.
  if (madvise(address, size, MADV_DONTFORK) != 0) {
    return system_error("cannot keep an arena from forked children", errno);
  }
  // The file may still shrink: its owner truncates it to take the memory back from its readers.
  if (arena.file_.ok()) {
    if (const Status sealed = seal_memory_file(arena.file_, true); !sealed) return sealed.error();
  }
  if (node == kAnyNumaNode) return arena;
  if (const Status bound = bind(address, size, node); !bound) return bound.error();
  arena.node_ = node;
  return arena;
}

Result<NumaArena> NumaArena::create(size_t bytes, Hugepages use) {
  return create(bytes, kAnyNumaNode, use, Sharing::kPrivate, nullptr);
}

Result<NumaArena> NumaArena::create(size_t bytes, int node, Hugepages use, Sharing sharing,
                                    Bind bind) {
  const bool is_large = bytes >= kHugepageBytes;
  const size_t size = mapped_bytes(bytes);
  if (is_large && use == Hugepages::kIfFree) {
    auto arena = map(size, MAP_HUGETLB | MAP_HUGE_2MB, sharing, node, bind);
    // mmap reserves hugepages from the pool of the whole machine, but a page fault takes them from
    // the bound node. If that node has too few, the first touch kills the process by SIGBUS.
    // Populating the mapping here turns that into an error, and ordinary pages are used.
    if (arena && madvise(arena->data_, size, MADV_POPULATE_WRITE) == 0) {
      arena->has_hugepages_ = true;
      return arena;
    }
  }
  auto arena = map(size, MAP_NORESERVE, sharing, node, bind);
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
