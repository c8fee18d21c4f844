// A map from a queue pair's number, which a completion names, to the slot of its peer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/check.h"

namespace pbox::nic {

// A hash table with open addressing and linear probing. The control thread inserts and erases. The
// polling thread may call find() at any time; it sees each entry whole or not at all.
class QueuePairTable {
 public:
  // `entries_max`: the largest number of entries at a time. Half of the places stay free.
  explicit QueuePairTable(uint32_t entries_max) {
    PBOX_CHECK(entries_max < UINT32_MAX / 4);
    while (size_ < 2 * entries_max) size_ *= 2;
    places_ = std::make_unique<std::atomic<uint64_t>[]>(size_);
  }

  // Adds an entry. `number` is at least 2 and not in the table.
  void insert(uint32_t number, uint32_t slot) {
    PBOX_CHECK(number != kNever && number != kErased);
    for (uint32_t step = 0; step < size_; ++step) {
      std::atomic<uint64_t>& place = place_of(number, step);
      const auto found = static_cast<uint32_t>(place.load(std::memory_order_relaxed));
      if (found != kNever && found != kErased) continue;
      place.store(uint64_t{slot} << 32 | number, std::memory_order_release);
      return;
    }
    PBOX_CHECK(false);  // more entries than entries_max
  }

  // Removes the entry, if there is one.
  void erase(uint32_t number) {
    for (uint32_t step = 0; step < size_; ++step) {
      std::atomic<uint64_t>& place = place_of(number, step);
      const auto found = static_cast<uint32_t>(place.load(std::memory_order_relaxed));
      if (found == kNever) return;
      if (found != number) continue;
      // Entries that follow must still be found, so the place may become kNever only if none
      // follows.
      const auto next =
          static_cast<uint32_t>(place_of(number, step + 1).load(std::memory_order_relaxed));
      place.store(next == kNever ? kNever : kErased, std::memory_order_release);
      return;
    }
  }

  // Returns the slot, or nothing. Polling thread.
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
  // Markers of places that were never used and of erased entries. The fabric reserves the numbers 0
  // and 1, so no queue pair has them.
  static constexpr uint32_t kNever = 0;
  static constexpr uint32_t kErased = 1;

  std::atomic<uint64_t>& place_of(uint32_t number, uint32_t step) const {
    PBOX_DCHECK((size_ & (size_ - 1)) == 0 && step <= size_);
    return places_[(number * 0x9e3779b1u + step) & (size_ - 1)];
  }

  uint32_t size_ = 2;
  std::unique_ptr<std::atomic<uint64_t>[]> places_;
};

}  // namespace pbox::nic
