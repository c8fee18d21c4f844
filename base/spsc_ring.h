// A bounded ring of plain values from one producer thread to one consumer thread. It is the only
// way for commands and reports to enter and leave a pipeline. Neither side blocks or allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace pbox {

template <typename T>
class SpscRing {
  static_assert(std::is_trivially_copyable_v<T>,
                "plain values only: the ring must not move ownership between cores");

 public:
  // `capacity`: how many values the ring holds, a power of two. The only allocation is here.
  explicit SpscRing(size_t capacity) : slots_(capacity), mask_(capacity - 1) {
    PBOX_CHECK(capacity != 0 && (capacity & (capacity - 1)) == 0);
  }

  // Producer thread. Returns false, and changes nothing, if the ring is full.
  bool push(const T& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    const size_t used = tail - head_.load(std::memory_order_acquire);
    PBOX_DCHECK(used <= mask_ + 1);  // fails if two threads push
    if (used > mask_) return false;
    PBOX_DCHECK((mask_ & (mask_ + 1)) == 0);
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Consumer thread. Returns false, and leaves `value` as it is, if the ring is empty.
  bool pop(T& value) {
    const size_t head = head_.load(std::memory_order_relaxed);
    const size_t used = tail_.load(std::memory_order_acquire) - head;
    PBOX_DCHECK(used <= mask_ + 1);  // fails if two threads pop
    if (used == 0) return false;
    value = slots_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Either thread. A hint only: the other thread may change the answer at any time.
  bool empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }

 private:
  std::vector<T> slots_;
  size_t mask_;  // capacity - 1
  // Counts of values popped and pushed since the start; slot = count & mask_. Each has its own
  // cache line, because they are written by different cores.
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
};

}  // namespace pbox
