#include "tests/fuzz/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> count = 0;

void* counted(void* memory) {
  count.fetch_add(1, std::memory_order_relaxed);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

namespace pbox::fuzz {

size_t allocation_count() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace pbox::fuzz

// These operators call malloc, which the sanitizers still watch. The array forms call these.
void* operator new(size_t bytes) {
  return counted(std::malloc(bytes));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return counted(std::malloc(bytes));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
