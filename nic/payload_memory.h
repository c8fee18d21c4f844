// Memory that payloads are sent from without a copy. Each region counts the packets that a device
// still holds and that point into it. The owner must remove the region before it frees the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::nic {

// The payload regions of one port. The control thread adds and removes regions; the polling thread
// finds them. The command that installs a job makes a new region visible to the polling thread. In
// a worker, the I/O thread does both.
class PayloadMemory {
 public:
  // Key of a region that the device refused to register. Payloads in it are copied.
  static constexpr uint64_t kRefused = UINT64_MAX;

  struct alignas(64) Region {
    std::atomic<const std::byte*> begin{nullptr};
    std::atomic<const std::byte*> end{nullptr};
    std::atomic<uint64_t> in_flight{0};  // packets held by the device whose payload lies here
    std::atomic<uint64_t> key{0};        // the device's key (lkey); 0 where it needs none

    // Returns whether the whole payload lies in the region: a device must read no byte outside.
    // While the control thread adds or removes a region here, `begin` changes only while `end` is
    // null. So an end that was read between two equal begins belongs to them.
    bool contains(const std::byte* payload, size_t bytes) const {
      const std::byte* first = begin.load(std::memory_order_acquire);
      return first != nullptr && payload >= first &&
             payload + bytes <= end.load(std::memory_order_acquire) &&
             begin.load(std::memory_order_relaxed) == first;
    }
  };

  explicit PayloadMemory(size_t regions_max = limits::kShardsPerPipelineMax)
      : regions_(regions_max) {}

  // Adds a region that overlaps no other. Returns false if all places are taken; payloads in that
  // memory are then copied. The control thread calls it.
  bool add(const std::byte* begin, size_t bytes, uint64_t key = 0) {
    PBOX_CHECK(begin != nullptr);
    for (Region& region : regions_) {
      if (region.end.load(std::memory_order_relaxed) != nullptr) continue;
      PBOX_CHECK(region.in_flight.load(std::memory_order_relaxed) == 0);
      PBOX_CHECK(region.begin.load(std::memory_order_relaxed) == nullptr);
      region.key.store(key, std::memory_order_relaxed);
      region.begin.store(begin, std::memory_order_release);
      region.end.store(begin + bytes, std::memory_order_release);
      const auto used = static_cast<size_t>(&region - regions_.data()) + 1;
      if (used > used_.load(std::memory_order_relaxed)) {
        used_.store(used, std::memory_order_relaxed);
      }
      return true;
    }
    return false;
  }

  // Hides the region that starts at `begin` from find(). Returns false while a packet that points
  // into it is in flight: keep the memory and call again. Returns true once the region is removed,
  // or if there is none. The control thread calls it, after the last packet was made from the
  // memory.
  bool remove(const std::byte* begin) {
    for (Region& region : regions_) {
      if (region.begin.load(std::memory_order_relaxed) != begin) continue;
      region.end.store(begin, std::memory_order_relaxed);
      if (region.in_flight.load(std::memory_order_acquire) != 0) return false;
      region.end.store(nullptr, std::memory_order_relaxed);
      region.begin.store(nullptr, std::memory_order_release);
      return true;
    }
    return true;
  }

  // Returns the region that holds the whole payload; nullptr if none does. The polling thread calls
  // it.
  Region* find(const std::byte* payload, size_t bytes) {
    PBOX_DCHECK(payload != nullptr || bytes == 0);
    PBOX_DCHECK(last_ < regions_.size());
    if (regions_[last_].contains(payload, bytes)) return &regions_[last_];
    const size_t used = used_.load(std::memory_order_relaxed);
    for (size_t index = 0; index < used; ++index) {
      if (!regions_[index].contains(payload, bytes)) continue;
      PBOX_DCHECK(regions_[index].end.load(std::memory_order_relaxed) != nullptr);
      last_ = index;
      return &regions_[index];
    }
    return nullptr;
  }

 private:
  std::vector<Region> regions_;
  std::atomic<size_t> used_{0};  // regions at this index and above were never used
  size_t last_ = 0;  // region of the last payload found, which often holds the next one too
};

}  // namespace pbox::nic
