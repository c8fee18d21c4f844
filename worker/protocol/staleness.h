// How old the data is that this worker reads: its clock minus the reader's (nic/wire/sync.h), 0 or
// less.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pbox::worker {

inline constexpr size_t kStalenessBuckets = 16;

struct StalenessCounts {
  uint64_t reads = 0;
  int64_t sum = 0;  // of the staleness of each, so 0 or less
  uint64_t square_sum = 0;
  // Reads of staleness 0, -1, -2, ...; the last: all that are older.
  std::array<uint64_t, kStalenessBuckets> by_staleness{};

  void count(int32_t staleness) {
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
