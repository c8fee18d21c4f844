// Counts how old the data is that this worker reads. Staleness is the data's clock minus the
// reader's clock (nic/wire/sync.h), so it is 0 or negative.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

namespace pbox::worker {

inline constexpr size_t kStalenessBuckets = 16;

struct StalenessCounts {
  uint64_t reads = 0;
  int64_t sum = 0;  // sum of the staleness of each read, so <= 0
  uint64_t square_sum = 0;
  // Reads with staleness 0, -1, -2, ...; the last bucket also counts all older ones.
  std::array<uint64_t, kStalenessBuckets> by_staleness{};

  void count(int32_t staleness) {
    PBOX_DCHECK(staleness <= 0);
    const auto age = static_cast<uint64_t>(-int64_t{staleness});
    ++reads;
    sum += staleness;
    square_sum += age * age;
    ++by_staleness[std::min<size_t>(age, by_staleness.size() - 1)];
  }
  void add(const StalenessCounts& other) {
    reads += other.reads;
    sum += other.sum;
    square_sum += other.square_sum;
    for (size_t age = 0; age < by_staleness.size(); ++age) {
      by_staleness[age] += other.by_staleness[age];
    }
  }
};

}  // namespace pbox::worker
