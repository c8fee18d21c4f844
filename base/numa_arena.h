// One block of memory on one NUMA node, in hugepages where the node has enough of them. Every large
// pool of a pipeline is cut from such a block, whose size is computed before anything runs.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox {

inline constexpr int kAnyNumaNode = -1;

// kIfFree: use reserved 2 MiB pages if the node has enough free ones. Otherwise, and with kNever,
// use ordinary pages and ask for transparent hugepages.
enum class Hugepages { kIfFree, kNever };
// kReadable: the memory is a file (memory_file.h), so that other processes can map it read-only.
enum class Sharing { kPrivate, kReadable };

// Owns a zero-filled mapping until it is destroyed. A child made by fork() does not have it. The
// control thread creates an arena and hands it to one owner, usually a pipeline. Not thread-safe.
class NumaArena {
 public:
  NumaArena() = default;
  NumaArena(NumaArena&& other) noexcept { swap(other); }
  NumaArena& operator=(NumaArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~NumaArena();

  // Maps `bytes`, rounded up to whole pages, on a node of the kernel's choice. Touches all reserved
  // hugepages, which takes about one second per 4 GiB. Ordinary pages are allocated when they are
  // first touched, or earlier by a Prefault.
  static Result<NumaArena> create(size_t bytes, Hugepages use = Hugepages::kIfFree);
  // Like create() above, but on `node`, unless that is kAnyNumaNode. Also fails if the node does
  // not exist. Where NUMA is unavailable (see bind_to_node) the memory stays unbound. Programs that
  // call this load libnuma.
  static Result<NumaArena> create(size_t bytes, int node, Hugepages use = Hugepages::kIfFree,
                                  Sharing sharing = Sharing::kPrivate);

  // Returns how many bytes create() maps for `bytes`: whole pages, which are 2 MiB if the block is
  // large enough for hugepages.
  static size_t mapped_bytes(size_t bytes);

  std::byte* data() const { return data_; }  // page-aligned
  size_t size() const { return size_; }
  int node() const { return node_; }  // as given to create()
  bool has_hugepages() const { return has_hugepages_; }
  const Descriptor& file() const { return file_; }  // valid with Sharing::kReadable only

  // Returns the next `bytes` of the block, aligned to 64 bytes. They stay valid as long as the
  // arena owns its mapping. Aborts if the block is too small: its size was computed wrongly.
  std::byte* take(size_t bytes);
  size_t taken() const { return taken_; }  // bytes handed out, padding included

 private:
  using Bind = Status (*)(void* address, size_t bytes, int node);
  static Result<NumaArena> create(size_t bytes, int node, Hugepages use, Sharing sharing,
                                  Bind bind);
  static Result<NumaArena> map(size_t size, int flags, Sharing sharing, int node, Bind bind);

  void swap(NumaArena& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(taken_, other.taken_);
    std::swap(node_, other.node_);
    std::swap(has_hugepages_, other.has_hugepages_);
    std::swap(file_, other.file_);
  }

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t taken_ = 0;
  int node_ = kAnyNumaNode;
  bool has_hugepages_ = false;
  Descriptor file_;
};

// While a Prefault lives, another thread makes the kernel allocate an arena's pages, so that the
// arena's owner need not wait for the kernel to fill them with zeros. Destroy it before the arena.
class Prefault {
 public:
  // May block for about a millisecond.
  virtual ~Prefault() = default;
  // Returns whether nothing is left to do. Any thread.
  virtual bool is_over() const = 0;
};

// Binds a mapping to `node`: pages touched from now on come from that node and from no other.
// `address` is page-aligned; `node` >= 0. Fails if the node does not exist or if pages of the
// mapping are on another node already. Succeeds and changes nothing where the kernel has no NUMA
// support, or a container's seccomp filter forbids its system calls. Control thread.
Status bind_to_node(void* address, size_t bytes, int node);

inline constexpr size_t kCacheLineBytes = 64;

// Rounds up to a multiple of `alignment`, which is not 0.
constexpr size_t align_up(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace pbox
