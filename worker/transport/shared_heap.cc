#include "worker/transport/shared_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/indexes/null_index.hpp>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <boost/interprocess/mem_algo/simple_seq_fit.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>

#include "base/numa_arena.h"
#include "worker/process/fork_guard.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

// Room for the allocator's tables, and for buffers that belong to no tensor.
constexpr uint64_t kBesideBytes = 4 << 20;

// The heap that each caller's memory comes from; null: ordinary memory.
struct CallersMemory {
  std::mutex mutex;
  std::map<std::byte*, std::shared_ptr<SharedHeap>> from;
};

// Never destroyed, because callers may free memory while the process ends.
CallersMemory& callers_memory() {
  static auto* const memory = new CallersMemory;
  return *memory;
}

}  // namespace

// The allocator keeps a list of free places in the memory itself, and has a lock of its own. The
// list is short: a caller has few buffers, and they live long. (Boost's default, a tree, keeps
// colours in the low bits of its pointers, which the undefined-behaviour sanitizer reports.)
class SharedHeap::Places {
 public:
  explicit Places(const Mapping& mapping)
      : heap_(boost::interprocess::create_only, mapping.data(), mapping.size()) {}

  std::byte* allocate(size_t bytes) {
    return static_cast<std::byte*>(heap_.allocate_aligned(bytes, kCacheLineBytes, std::nothrow));
  }
  void free(std::byte* memory) { heap_.deallocate(memory); }

 private:
  using List = boost::interprocess::simple_seq_fit<boost::interprocess::mutex_family>;
  boost::interprocess::basic_managed_external_buffer<char, List, boost::interprocess::null_index>
      heap_;
};

Result<std::shared_ptr<SharedHeap>> SharedHeap::make(size_t bytes) {
  auto file = make_memory_file("pbox-heap", bytes);
  if (!file) return file.error();
  void* const place =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file->get(), 0);
  if (place == MAP_FAILED) return system_error("cannot map memory to share", errno);
  Mapping mapping(static_cast<std::byte*>(place), bytes);
  if (const Status sealed = seal_memory_file(*file); !sealed) return sealed.error();
  return std::shared_ptr<SharedHeap>(new SharedHeap(std::move(*file), std::move(mapping)));
}

std::shared_ptr<SharedHeap> SharedHeap::for_job(const std::vector<std::string>& ports,
                                                const wire::SyncSpec& job,
                                                const std::vector<TensorSpec>& tensors) {
  const bool may_share = std::any_of(ports.begin(), ports.end(), [](const std::string& port) {
    return port == kShmPort || port == kAutoPort;
  });
  if (!may_share || relaxed_model(job, tensors) != wire::SyncModel::kBsp) return nullptr;
  uint64_t bytes = kBesideBytes;
  for (const TensorSpec& tensor : tensors) {
    bytes += 2 * tensor.elements * wire::dtype_bytes(tensor.dtype);
  }
  auto heap = make(bytes);
  return heap ? std::move(*heap) : nullptr;
}

SharedHeap::SharedHeap(Descriptor file, Mapping mapping)
    : owner_pid_(getpid()),
      file_(std::move(file)),
      mapping_(std::move(mapping)),
      places_(std::make_unique<Places>(mapping_)) {
  close_in_child(file_.get());
}

SharedHeap::~SharedHeap() {
  forget_in_child(file_.get());
}

std::byte* SharedHeap::allocate(size_t bytes) {
  const bool may_fit = getpid() == owner_pid_ && bytes < mapping_.size();
  return may_fit ? places_->allocate(bytes) : nullptr;
}

void SharedHeap::free(std::byte* memory) {
  if (getpid() == owner_pid_) places_->free(memory);
}

std::byte* allocate_shared(const std::shared_ptr<SharedHeap>& heap, size_t bytes) {
  if (bytes > std::numeric_limits<ptrdiff_t>::max()) return nullptr;  // align_up() may overflow
  bytes = align_up(std::max<size_t>(bytes, 1), kCacheLineBytes);
  std::byte* memory = heap ? heap->allocate(bytes) : nullptr;
  const bool is_shared = memory != nullptr;
  if (!is_shared) memory = static_cast<std::byte*>(std::aligned_alloc(kCacheLineBytes, bytes));
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0, bytes);
  CallersMemory& callers = callers_memory();
  const std::lock_guard lock(callers.mutex);
  callers.from[memory] = is_shared ? heap : nullptr;
  return memory;
}

bool free_shared(std::byte* memory) {
  std::shared_ptr<SharedHeap> heap;
  {
    CallersMemory& callers = callers_memory();
    const std::lock_guard lock(callers.mutex);
    const auto found = callers.from.find(memory);
    if (found == callers.from.end()) return false;
    heap = std::move(found->second);
    callers.from.erase(found);
  }
  if (heap) {
    heap->free(memory);
  } else {
    std::free(memory);
  }
  return true;
}

}  // namespace pbox::worker
