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

TEST_CASE("quantiles are values that were measured, and half of them lie in the spread") {
  CHECK(quantile({4, 1, 3, 2}, 0.25) == 1);
  CHECK(quantile({4, 1, 3, 2}, 0.99) == 4);
  CHECK(quantile({7}, 0.01) == 7);
  const Spread found = spread({8, 1, 2, 7, 3, 6, 4, 5});
  CHECK(found.low == 2);
  CHECK(found.median == 4.5);
  CHECK(found.high == 6);
  CHECK(ratios({4, 9}, {2, 3}) == std::vector<double>{2, 3});
}

TEST_CASE("growth is told as an exponent, whatever the constant factor") {
  CHECK(growth_exponent({1, 2, 4}, {7, 14, 28}) == Approx(1));
  CHECK(growth_exponent({10, 20, 40, 80}, {3, 12, 48, 192}) == Approx(2));
  CHECK(growth_exponent({1, 10}, {5, 5}) == Approx(0).margin(1e-12));
  // One step that is off by half does not turn a line into a square.
  CHECK(growth_exponent({1, 2, 4, 8}, {1, 2, 6, 8}) < 1.2);
}

}  // namespace pbox::perf
