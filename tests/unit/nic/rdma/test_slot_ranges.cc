#include <catch2/catch.hpp>

#include "nic/rdma/slot_ranges.h"

namespace pbox::nic {

TEST_CASE("ranges are contiguous and disjoint, and the lowest free ones") {
  SlotRanges ranges(10);
  CHECK(ranges.take(4) == 0);
  CHECK(ranges.take(3) == 4);
  CHECK(ranges.length(4) == 3);
  CHECK(ranges.take(4) == std::nullopt);
  CHECK(ranges.take(3) == 7);
  CHECK(ranges.take(1) == std::nullopt);
}

TEST_CASE("freed slots are taken again, alone or with free neighbours") {
  SlotRanges ranges(10);
  for (const uint32_t count : {4, 3, 2}) REQUIRE(ranges.take(count));
  ranges.give_back(4);
  CHECK(ranges.take(4) == std::nullopt);
  CHECK(ranges.take(2) == 4);
  CHECK(ranges.take(1) == 6);
  ranges.give_back(4);
  ranges.give_back(0);
  CHECK(ranges.take(6) == 0);
  CHECK(ranges.take(1) == 9);
}

TEST_CASE("an empty block has no ranges") {
  SlotRanges ranges(0);
  CHECK(ranges.take(1) == std::nullopt);
}

}  // namespace pbox::nic
