// Pinned host memory, pinned once and reused. A block that was given back can be taken again when
// the device has passed the block's event. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "worker/cuda/runtime.h"

namespace pbox::worker::cuda {

// Owns pinned memory and an event.
class PinnedBlock {
 public:
  // kSystem: the memory cannot be pinned. The current device must be set.
  static Result<std::unique_ptr<PinnedBlock>> make(const Runtime& runtime, size_t bytes);
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  std::byte* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }
  // Returns the event that the owner records behind the last use of the memory.
  Event event() const { return event_; }
  // Returns whether the device has passed the event. True if it was never recorded.
  bool is_passed() const;

 private:
  PinnedBlock(const Runtime& runtime, size_t bytes) : runtime_(runtime), bytes_(bytes) {}

  const Runtime& runtime_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  Event event_ = nullptr;
};

class PinnedPool {
 public:
  // `on_new` is called with each block that is made.
  PinnedPool(const Runtime& runtime, std::function<void(const PinnedBlock&)> on_new)
      : runtime_(runtime), on_new_(std::move(on_new)) {}

  // Returns a block of at least `bytes`.
  Result<std::unique_ptr<PinnedBlock>> take(size_t bytes);
  void give_back(std::unique_ptr<PinnedBlock> block) { free_.push_back(std::move(block)); }

 private:
  const Runtime& runtime_;
  std::function<void(const PinnedBlock&)> on_new_;
  std::vector<std::unique_ptr<PinnedBlock>> free_;
};

}  // namespace pbox::worker::cuda
