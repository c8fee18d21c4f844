// The memory that payloads are sent from without a copy, and how many packets a device still holds
// that point into it: who frees it asks first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/limits.h"

namespace pbox::nic {

// Regions of one port. The control thread adds and removes them, the polling thread finds them; the
// command that installs a job orders the two. A worker's I/O thread is both.
class PayloadMemory {
 public:
  // The key of memory that the device has refused to read: payloads there are copied.
  static constexpr uint64_t kRefused = UINT64_MAX;

  struct alignas(64) Region {
    std::atomic<const std::byte*> begin{nullptr};
    std::atomic<const std::byte*> end{nullptr};
    std::atomic<uint64_t> in_flight{0};  // packets whose payload lies here
    std::atomic<uint64_t> key{0};        // what the device knows it by, where that needs one

    // All of it: a device may read no byte beyond.
    bool contains(const std::byte* payload, size_t bytes) const {
      return payload >= begin.load(std::memory_order_relaxed) &&
             payload + bytes <= end.load(std::memory_order_relaxed);
    }
  };

  explicit PayloadMemory(size_t regions_max = limits::kJobsMax) : regions_(regions_max) {}

  // False if there is no place left: then payloads there are copied. Control thread.
  bool add(const std::byte* begin, size_t bytes, uint64_t key = 0) {
    for (Region& region : regions_) {
      if (region.end.load(std::memory_order_relaxed) != nullptr) continue;
      region.key.store(key, std::memory_order_relaxed);
      region.begin.store(begin, std::memory_order_relaxed);
      region.end.store(begin + bytes, std::memory_order_relaxed);
      const auto used = static_cast<size_t>(&region - regions_.data()) + 1;
      if (used > used_.load(std::memory_order_relaxed)) {
        used_.store(used, std::memory_order_relaxed);
      }
      return true;
    }
    return false;
  }

  // From here on it is not found: false as long as a packet is in flight, else it is forgotten.
  // Control thread, once no new packet is made from there.
  bool remove(const std::byte* begin) {
    for (Region& region : regions_) {
      if (region.begin.load(std::memory_order_relaxed) != begin) continue;
      region.end.store(begin, std::memory_order_relaxed);
      if (region.in_flight.load(std::memory_order_acquire) != 0) return false;
      region.begin.store(nullptr, std::memory_order_relaxed);
      region.end.store(nullptr, std::memory_order_relaxed);
      return true;
    }
    return true;
  }

  // nullptr: nowhere. The polling thread.
  Region* find(const std::byte* payload, size_t bytes) {
    if (regions_[last_].contains(payload, bytes)) return &regions_[last_];
    const size_t used = used_.load(std::memory_order_relaxed);
    for (size_t index = 0; index < used; ++index) {
      if (!regions_[index].contains(payload, bytes)) continue;
      last_ = index;
      return &regions_[index];
    }
    return nullptr;
  }

 private:
  std::vector<Region> regions_;
  std::atomic<size_t> used_{0};  // regions at or behind this index have never been used
  size_t last_ = 0;              // where the last payload was: they come in runs
};

}  // namespace pbox::nic
