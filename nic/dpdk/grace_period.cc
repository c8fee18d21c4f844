#include "nic/dpdk/grace_period.h"

#include <dlfcn.h>
#include <rte_interrupts.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <thread>

namespace pbox::nic {
namespace {

struct alignas(64) Cell {
  std::atomic<bool> is_taken{false};
  std::atomic<uint64_t> inside{0};  // number of the current visit; 0: outside
};

std::array<Cell, GracePeriodPoller::kPollersMax> cells;
std::atomic<uint64_t> unwatched_cell{0};  // cell of pollers beyond kPollersMax

}  // namespace

GracePeriodPoller::GracePeriodPoller() : cell_(&unwatched_cell) {
  for (Cell& cell : cells) {
    if (cell.is_taken.exchange(true)) continue;
    cell_ = &cell.inside;
    return;
  }
}

GracePeriodPoller::~GracePeriodPoller() {
  leave();
  for (Cell& cell : cells) {
    if (&cell.inside == cell_) cell.is_taken.store(false);
  }
}

void wait_for_grace_period() {
  // A full barrier: pollers that enter from now on see what this thread wrote before.
  unwatched_cell.exchange(0, std::memory_order_seq_cst);
  for (const Cell& cell : cells) {
    const uint64_t inside = cell.inside.load(std::memory_order_seq_cst);
    while (inside != 0 && cell.inside.load(std::memory_order_acquire) == inside) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
  }
}

}  // namespace pbox::nic

// ThreadSanitizer itself unmaps memory while it holds its locks. Therefore this function is not
// instrumented, and initialises no static variable, which would take a lock.
extern "C" __attribute__((visibility("default"), no_sanitize("thread"))) int munmap(
    void* memory, size_t bytes) noexcept {
  using Function = int (*)(void*, size_t);
  static Function next = nullptr;  // all threads store the same
  Function function = __atomic_load_n(&next, __ATOMIC_RELAXED);
  if (function == nullptr) {
    function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "munmap"));
    __atomic_store_n(&next, function, __ATOMIC_RELAXED);
  }
  if (rte_thread_is_intr() != 0) pbox::nic::wait_for_grace_period();
  return function(memory, bytes);
}
