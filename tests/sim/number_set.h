// A set of drawn or hashed numbers, for checks of every packet. It uses open addressing, so a
// number costs no memory block of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pbox::sim {

class NumberSet {
 public:
  // Returns false if the number was there already.
  bool insert(uint64_t number) {
    if (number == kFree) return !std::exchange(has_free_, true);
    if (2 * (count_ + 1) > places_.size()) grow();
    uint64_t& place = find(number);
    if (place == number) return false;
    place = number;
    ++count_;
    return true;
  }

 private:
  static constexpr uint64_t kFree = 0;

  // Returns the number's place, or the free one where it belongs.
  uint64_t& find(uint64_t number) {
    const size_t mask = places_.size() - 1;
    size_t index = number & mask;
    while (places_[index] != number && places_[index] != kFree) index = (index + 1) & mask;
    return places_[index];
  }

  void grow() {
    constexpr size_t kPlacesMin = 1024;
    const auto before = std::exchange(
        places_, std::vector<uint64_t>(std::max(kPlacesMin, 2 * places_.size()), kFree));
    for (const uint64_t number : before) {
      if (number != kFree) find(number) = number;
    }
  }

  std::vector<uint64_t> places_;  // their number is a power of two, and at most half are taken
  size_t count_ = 0;
  bool has_free_ = false;  // the number kFree is in the set
};

}  // namespace pbox::sim
