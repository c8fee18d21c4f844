// The network that exchanges are tested on, and the seeds of its faults.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "nic/loopback/port.h"

namespace pbox::test {

// Returns the end of a range of seeds from `first` on: PBOX_EXCHANGE_SEEDS of them, or one.
inline uint64_t seeds_after(uint64_t first) {
  const char* count = std::getenv("PBOX_EXCHANGE_SEEDS");
  return first + (count == nullptr ? 1 : std::strtoull(count, nullptr, 10));
}

inline nic::FaultPlan hostile(uint64_t seed) {
  return {.seed = seed,
          .loss = 0.05,
          .duplication = 0.05,
          .reordering = 0.2,
          .delay_ns = 20'000,
          .delay_max_ns = 30'000'000};
}

}  // namespace pbox::test
