// One block of memory on one NUMA node, in hugepages where there are any: every large pool of a
// pipeline is cut out of such a block, sized before anything runs.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"

namespace pbox {

inline constexpr int kAnyNumaNode = -1;

// kIfFree: reserved 2 MiB pages where the node has enough; else, and with kNever, transparent ones.
enum class Hugepages { kIfFree, kNever };

// Owns an anonymous mapping. Made by the control thread, handed whole to one pipeline. Zero-filled.
class NumaArena {
 public:
  NumaArena() = default;
  NumaArena(NumaArena&& other) noexcept { swap(other); }
  NumaArena& operator=(NumaArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~NumaArena();

  // Maps `bytes` (rounded up to a page) bound to `node` (kAnyNumaNode: the kernel's choice).
  // Reserved hugepages are all touched here, which takes about a second for each 4 GiB; other pages
  // are touched lazily, so that residence grows with use.
  static Result<NumaArena> create(size_t bytes, int node, Hugepages use = Hugepages::kIfFree);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int node() const { return node_; }
  bool has_hugepages() const { return has_hugepages_; }

  // The next `bytes` of the block, 64-byte aligned. Aborts when the footprint was computed wrongly.
  std::byte* take(size_t bytes);
  size_t taken() const { return taken_; }

 private:
  static Result<NumaArena> map(size_t size, int node, int flags);

  void swap(NumaArena& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(taken_, other.taken_);
    std::swap(node_, other.node_);
    std::swap(has_hugepages_, other.has_hugepages_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t taken_ = 0;
  int node_ = kAnyNumaNode;
  bool has_hugepages_ = false;
};

inline constexpr size_t kCacheLineBytes = 64;
constexpr size_t align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace pbox
