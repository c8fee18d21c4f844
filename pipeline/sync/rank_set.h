// A set of a job's ranks: a bit per rank, by value, without allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::sync {

class RankSet {
 public:
  static constexpr uint32_t kNone = limits::kWorkersPerJobMax;

  bool has(uint32_t rank) const {
    PBOX_DCHECK(rank < kNone);
    return (words_[rank / 64] >> (rank % 64) & 1) != 0;
  }
  void add(uint32_t rank) {
    PBOX_DCHECK(rank < kNone);
    words_[rank / 64] |= uint64_t{1} << (rank % 64);
  }
  void add(const RankSet& others) {
    for (size_t index = 0; index < words_.size(); ++index) words_[index] |= others.words_[index];
  }
  void remove(uint32_t rank) {
    PBOX_DCHECK(rank < kNone);
    words_[rank / 64] &= ~(uint64_t{1} << (rank % 64));
  }
  bool empty() const {
    return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
  }

  // Returns the least member that is at least `rank`, which is in [0, kNone]. Returns kNone if
  // there is none.
  uint32_t next(uint32_t rank) const {
    for (uint32_t index = rank / 64; index < words_.size(); ++index) {
      const uint64_t from = index == rank / 64 ? ~uint64_t{0} << (rank % 64) : ~uint64_t{0};
      const uint64_t found = words_[index] & from;
      if (found != 0) return index * 64 + static_cast<uint32_t>(__builtin_ctzll(found));
    }
    return kNone;
  }

 private:
  static_assert(limits::kWorkersPerJobMax % 64 == 0);
  std::array<uint64_t, limits::kWorkersPerJobMax / 64> words_{};
};

}  // namespace pbox::sync
