// From a queue pair's number to its slot: what a completion names, and what a packet's sender is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/check.h"

namespace pbox::nic {

// Open addressing with linear probing. One thread inserts and erases (control), another finds
// (polling) at any time: it sees an entry or does not, never half of one.
class QueuePairTable {
 public:
  // entries_max: how many are in it at once, at most. Half of the places stay free.
  explicit QueuePairTable(uint32_t entries_max) {
    while (size_ < 2 * entries_max) size_ *= 2;
    places_ = std::make_unique<std::atomic<uint64_t>[]>(size_);
  }

  // number: not 0, and not in the table. slot: below 2^32.
  void insert(uint32_t number, uint32_t slot) {
    for (uint32_t step = 0; step < size_; ++step) {
      std::atomic<uint64_t>& place = place_of(number, step);
      const auto found = static_cast<uint32_t>(place.load(std::memory_order_relaxed));
      if (found != kNever && found != kErased) continue;
      place.store(uint64_t{slot} << 32 | number, std::memory_order_release);
      return;
    }
    PBOX_CHECK(false);
  }

  void erase(uint32_t number) {
    for (uint32_t step = 0; step < size_; ++step) {
      std::atomic<uint64_t>& place = place_of(number, step);
      const auto found = static_cast<uint32_t>(place.load(std::memory_order_relaxed));
      if (found == kNever) return;
      if (found != number) continue;
      // What stands behind it must still be found, unless nothing does.
      const auto next =
          static_cast<uint32_t>(place_of(number, step + 1).load(std::memory_order_relaxed));
      place.store(next == kNever ? kNever : kErased, std::memory_order_release);
      return;
    }
  }

  std::optional<uint32_t> find(uint32_t number) const {
    for (uint32_t step = 0; step < size_; ++step) {
      const uint64_t place = place_of(number, step).load(std::memory_order_acquire);
      const auto found = static_cast<uint32_t>(place);
      if (found == number) return static_cast<uint32_t>(place >> 32);
      if (found == kNever) return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  // Numbers 0 and 1 are the fabric's own: no queue pair has them.
  static constexpr uint32_t kNever = 0;
  static constexpr uint32_t kErased = 1;

  std::atomic<uint64_t>& place_of(uint32_t number, uint32_t step) const {
    return places_[(number * 0x9e3779b1u + step) & (size_ - 1)];
  }

  uint32_t size_ = 2;
  std::unique_ptr<std::atomic<uint64_t>[]> places_;
};

}  // namespace pbox::nic
