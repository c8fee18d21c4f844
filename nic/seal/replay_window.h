// Remembers which packet numbers of one sender have arrived, so that none is accepted twice (RFC
// 4303, section 3.4.3). Used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>

#include "base/check.h"

namespace pbox::seal {

class ReplayWindow {
 public:
  // A packet whose number is lower than the newest by this much or more is dropped. The worker then
  // sends it again, or asks for it again.
  static constexpr uint64_t kPackets = 1024;

  // Returns whether the number is new, and remembers it. Only for packets whose tag was right, or
  // else anybody could move the window. Numbers begin at 1.
  bool take(uint64_t number) {
    if (number == 0) return false;
    if (number > newest_) {
      advance(number);
    } else if (newest_ - number >= kPackets) {
      return false;
    }
    PBOX_DCHECK(number <= newest_ && newest_ - number < kPackets);
    uint64_t& word = seen_[number / kWordBits % kWords];
    const uint64_t bit = uint64_t{1} << number % kWordBits;
    if ((word & bit) != 0) return false;
    word |= bit;
    return true;
  }

 private:
  static constexpr uint64_t kWordBits = 64;
  // One word more than the window needs, because the newest number may be at any bit of its word.
  static constexpr uint64_t kWords = kPackets / kWordBits + 1;

  void advance(uint64_t number) {
    PBOX_DCHECK(number > newest_);
    const uint64_t first = newest_ / kWordBits + 1;
    const uint64_t last = number / kWordBits;
    PBOX_DCHECK(last + 1 >= first);
    if (last >= first + kWords) {
      seen_.fill(0);
    } else {
      for (uint64_t word = first; word <= last; ++word) seen_[word % kWords] = 0;
    }
    newest_ = number;
  }

  std::array<uint64_t, kWords> seen_{};
  uint64_t newest_ = 0;
};

}  // namespace pbox::seal
