#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "base/rng.h"
#include "nic/rdma/queue_pair_table.h"

namespace pbox::nic {

TEST_CASE("queue pairs are found while they are in the table, whatever is inserted and erased") {
  constexpr uint32_t kEntries = 37;
  // Consecutive numbers, as devices assign them, and random numbers.
  for (const uint64_t range : {uint64_t{64}, uint64_t{1} << 24}) {
    QueuePairTable table(kEntries);
    std::map<uint32_t, uint32_t> oracle;
    Rng draws(range);
    for (uint32_t step = 0; step < 200'000; ++step) {
      const auto number = static_cast<uint32_t>(2 + draws.below(range - 2));
      const auto known = oracle.find(number);
      const auto found = table.find(number);
      REQUIRE(found.has_value() == (known != oracle.end()));
      if (found) REQUIRE(*found == known->second);
      if (known != oracle.end()) {
        table.erase(number);
        oracle.erase(known);
      } else if (oracle.size() < kEntries) {
        table.insert(number, step);
        oracle[number] = step;
      }
    }
  }
}

TEST_CASE("numbers that are not in the table are neither found nor erased") {
  QueuePairTable table(2);
  CHECK(!table.find(17));
  table.erase(17);
  table.insert(17, 0);
  table.erase(18);
  CHECK(table.find(17) == 0u);
}

}  // namespace pbox::nic
