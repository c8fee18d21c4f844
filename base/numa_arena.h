// One block of memory on one NUMA node, in hugepages where the node has enough of them. Every large
// pool of a pipeline is cut from such a block, whose size is computed before anything runs.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/result.h"

namespace pbox {

inline constexpr int kAnyNumaNode = -1;

// kIfFree: use reserved 2 MiB pages if the node has enough free ones. Otherwise, and with kNever,
// use ordinary pages and ask for transparent hugepages.
enum class Hugepages { kIfFree, kNever };

// Owns an anonymous, zero-filled mapping until it is destroyed. The control thread creates an arena
// and hands it to one owner, usually a pipeline. Not thread-safe.
class NumaArena {
 public:
  NumaArena() = default;
  NumaArena(NumaArena&& other) noexcept { swap(other); }
  NumaArena& operator=(NumaArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~NumaArena();

  // Maps `bytes`, rounded up to whole pages, on `node`; kAnyNumaNode leaves the choice to the
  // kernel. Touches all reserved hugepages, which takes about one second per 4 GiB. Ordinary pages
  // are touched lazily, so resident memory grows with use. Fails if the mapping fails or the node
  // does not exist. Where NUMA is unavailable (see bind_to_node) the memory stays unbound.
  static Result<NumaArena> create(size_t bytes, int node, Hugepages use = Hugepages::kIfFree);

  std::byte* data() const { return data_; }  // page-aligned
  size_t size() const { return size_; }
  int node() const { return node_; }  // as asked for in create()
  bool has_hugepages() const { return has_hugepages_; }

  // Returns the next `bytes` of the block, aligned to 64 bytes. They stay valid as long as the
  // arena owns its mapping. Aborts if the block is too small: its size was computed wrongly.
  std::byte* take(size_t bytes);
  size_t taken() const { return taken_; }  // bytes handed out, padding included

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

// Rounds up to a multiple of `alignment`, which is not 0.
constexpr size_t align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace pbox
