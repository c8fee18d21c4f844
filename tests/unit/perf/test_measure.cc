#include <catch2/catch.hpp>

#include "perf/measure.h"

namespace pbox::perf {

TEST_CASE("the median of ratios pairs the turns") {
  // The machine is ten times as slow from the third turn on; each turn says "twice".
  CHECK(median_ratio({2, 4, 60, 80}, {1, 2, 30, 40}) == 2);
  CHECK(median_ratio({3, 1, 2}, {1, 1, 1}) == 2);
}

TEST_CASE("the median of an even number of values lies between the middle two") {
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({9, 1, 5}) == 5);
}

}  // namespace pbox::perf
