// The memory that results are sent from without a copy, and how many packets a device still holds
// that point into it: who frees it asks first.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"

namespace pbox::nic {

// Regions of one port. The control thread adds and removes them, the polling thread finds them; the
// command that installs a job orders the two.
class PayloadMemory {
 public:
  struct alignas(64) Region {
    std::atomic<const std::byte*> begin{nullptr};
    std::atomic<const std::byte*> end{nullptr};
    std::atomic<uint64_t> in_flight{0};  // packets whose payload lies here
    std::atomic<uint32_t> key{0};        // what the device knows it by, where that needs one

    bool contains(const std::byte* payload) const {
      return payload >= begin.load(std::memory_order_relaxed) &&
             payload < end.load(std::memory_order_relaxed);
    }
  };

  // False if there is no place left: then payloads there are copied. Control thread.
  bool add(const std::byte* begin, size_t bytes, uint32_t key = 0) {
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

  // Once no new packet is made from there: false as long as one is in flight; else it is forgotten.
  // Control thread.
  bool remove(const std::byte* begin) {
    for (Region& region : regions_) {
      if (region.begin.load(std::memory_order_relaxed) != begin) continue;
      if (region.in_flight.load(std::memory_order_acquire) != 0) return false;
      region.begin.store(nullptr, std::memory_order_relaxed);
      region.end.store(nullptr, std::memory_order_relaxed);
      return true;
    }
    return true;
  }

  // nullptr: nowhere. The polling thread.
  Region* find(const std::byte* payload) {
    if (regions_[last_].contains(payload)) return &regions_[last_];
    const size_t used = used_.load(std::memory_order_relaxed);
    for (size_t index = 0; index < used; ++index) {
      if (!regions_[index].contains(payload)) continue;
      last_ = index;
      return &regions_[index];
    }
    return nullptr;
  }

 private:
  std::array<Region, limits::kJobsMax> regions_;
  std::atomic<size_t> used_{0};  // regions at or behind this index have never been used
  size_t last_ = 0;              // where the last payload was: results come in runs
};

}  // namespace pbox::nic
