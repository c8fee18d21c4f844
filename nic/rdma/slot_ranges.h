// Allocates contiguous ranges of slots from a block. A value; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/check.h"

namespace pbox::nic {

class SlotRanges {
 public:
  explicit SlotRanges(uint32_t slots) : slots_(slots) {}

  // Takes the lowest free range of `count` > 0 slots. Returns its first slot, or nothing.
  std::optional<uint32_t> take(uint32_t count) {
    PBOX_CHECK(count > 0);
    uint32_t first = 0;
    for (const auto& [taken, length] : taken_) {
      if (taken - first >= count) break;
      first = taken + length;
    }
    if (slots_ - first < count) return std::nullopt;
    taken_.emplace(first, count);
    return first;
  }

  // Return the length of a range, and free it. `first` is what take() returned.
  uint32_t length(uint32_t first) const { return taken_.at(first); }
  void give_back(uint32_t first) { PBOX_CHECK(taken_.erase(first) == 1); }

 private:
  uint32_t slots_;
  std::map<uint32_t, uint32_t> taken_;  // first slot -> length
};

}  // namespace pbox::nic
