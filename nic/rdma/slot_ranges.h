// Which slots of a block are taken, in runs of neighbours. A value; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/check.h"

namespace pbox::nic {

class SlotRanges {
 public:
  explicit SlotRanges(uint32_t slots) : slots_(slots) {}

  // The first of `count` (> 0) neighbours that were free and are taken now: the lowest there are.
  std::optional<uint32_t> take(uint32_t count) {
    uint32_t first = 0;
    for (const auto& [taken, length] : taken_) {
      if (taken - first >= count) break;
      first = taken + length;
    }
    if (slots_ - first < count) return std::nullopt;
    taken_.emplace(first, count);
    return first;
  }

  // Of what take has returned at `first`.
  uint32_t length(uint32_t first) const { return taken_.at(first); }
  void give_back(uint32_t first) { PBOX_CHECK(taken_.erase(first) == 1); }

 private:
  uint32_t slots_;
  std::map<uint32_t, uint32_t> taken_;  // first slot -> how many
};

}  // namespace pbox::nic
