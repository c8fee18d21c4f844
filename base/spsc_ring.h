// A bounded ring of plain values from one producer thread to one consumer thread: the only way in
// and out of a pipeline. Neither side blocks or allocates.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace pbox {

template <typename T>
class SpscRing {
  static_assert(std::is_trivially_copyable_v<T>, "values only: no ownership crosses a core unseen");

 public:
  // capacity: a power of two.
  explicit SpscRing(size_t capacity) : slots_(capacity), mask_(capacity - 1) {
    PBOX_CHECK(capacity != 0 && (capacity & (capacity - 1)) == 0);
  }

  // Producer thread. False when full.
  bool push(const T& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) > mask_) return false;
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Consumer thread. False when empty.
  bool pop(T& value) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    value = slots_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Either thread; a hint only.
  bool empty() const {
    return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire);
  }

 private:
  std::vector<T> slots_;
  size_t mask_;
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
};

}  // namespace pbox
