#include <array>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>

#include "base/rng.h"

namespace pbox {
namespace {

TEST_CASE("the generator is SplitMix64: it yields that algorithm's published sequence") {
  Rng rng(1234567);
  CHECK(rng.next() == 6457827717110365317ull);
  CHECK(rng.next() == 3203168211198807973ull);
  CHECK(rng.next() == 9817491932198370423ull);
}

TEST_CASE("the same seed gives the same run, another seed another") {
  Rng first(7);
  Rng again(7);
  Rng other(8);
  int same_as_other = 0;
  for (int draw = 0; draw < 100; ++draw) {
    const uint64_t value = first.next();
    REQUIRE(value == again.next());
    same_as_other += value == other.next();
  }
  CHECK(same_as_other == 0);
}

TEST_CASE("below(n) stays in [0, n) and reaches every value about equally often") {
  constexpr uint64_t kBound = 10;
  constexpr int kDraws = 100'000;
  std::array<int, kBound> counts{};
  Rng rng(1);
  for (int draw = 0; draw < kDraws; ++draw) {
    const uint64_t value = rng.below(kBound);
    REQUIRE(value < kBound);
    ++counts[value];
  }
  // Within ten standard deviations (sqrt(kDraws * 0.1 * 0.9) = 95) of the mean.
  for (const int count : counts) CHECK(std::abs(count - kDraws / 10) < 950);
  CHECK(rng.below(1) == 0);
}

TEST_CASE("unit() stays in [0, 1) with mean one half") {
  constexpr int kDraws = 100'000;
  Rng rng(2);
  double sum = 0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const double value = rng.unit();
    REQUIRE(value >= 0.0);
    REQUIRE(value < 1.0);
    sum += value;
  }
  CHECK(sum / kDraws == Approx(0.5).margin(0.01));
}

}  // namespace
}  // namespace pbox
