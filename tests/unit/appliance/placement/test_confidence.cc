#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "appliance/placement/confidence.h"
#include "base/rng.h"

namespace pbox::placement {
namespace {

// Returns a nearly normal number with mean 0 and standard deviation 1.
double normal(Rng& rng) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rng.unit();
  return sum;
}

// Returns how many of 500 series of 100 values exclude 0, their centre, at some size. The interval
// is taken after every value, and `draw` draws the values.
int wrong_series(double error, const std::function<double(Rng&)>& draw) {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed);
    std::vector<double> values;
    for (bool is_wrong = false; values.size() < 100 && !is_wrong;) {
      values.push_back(draw(rng));
      const Interval interval = centre_interval(values, error);
      is_wrong = interval.above_zero() || interval.below_zero();
      wrong += is_wrong;
    }
  }
  return wrong;
}

// Returns after how many normal values with this mean and standard deviation 1 the interval has
// excluded 0, as the median of 51 series.
size_t values_needed(double mean, double error) {
  std::vector<double> needed;
  for (uint64_t seed = 1; seed <= 51; ++seed) {
    Rng rng(seed);
    std::vector<double> values;
    do {
      values.push_back(mean + normal(rng));
    } while (!centre_interval(values, error).above_zero());
    needed.push_back(static_cast<double>(values.size()));
  }
  return static_cast<size_t>(median_of(needed));
}

}  // namespace

TEST_CASE("fewer than three values exclude nothing; three equal ones leave only themselves") {
  const std::vector<double> equal(3, 2.0);
  CHECK_FALSE(centre_interval(std::span(equal).first(2), 0.05).above_zero());
  const Interval interval = centre_interval(equal, 0.05);
  CHECK(interval.low == 2);
  CHECK(interval.high == 2);
}

TEST_CASE("a caller that looks after every value is misled no more often than allowed") {
  for (const double error : {0.05, 0.2}) {
    INFO("error " << error);
    const int allowed = static_cast<int>(500 * error);
    CHECK(wrong_series(error, normal) <= allowed);
    CHECK(wrong_series(error, [](Rng& rng) { return 2 * rng.unit() - 1; }) <= allowed);
    // Heavy tails: the ratio of two normal numbers has no mean.
    CHECK(wrong_series(error, [](Rng& rng) { return normal(rng) / normal(rng); }) <= allowed);
    // Every tenth value is thirty times as large.
    CHECK(wrong_series(error, [](Rng& rng) {
            return normal(rng) * (rng.below(10) == 0 ? 30 : 1);
          }) <= allowed);
  }
  // The checks above can fail: where a large error is allowed, errors do happen.
  CHECK(wrong_series(0.9, normal) > 50);
}

TEST_CASE("a large effect needs few values, a small one many") {
  CHECK(values_needed(30, 0.01) <= 4);
  CHECK(values_needed(5, 0.01) <= 7);
  CHECK(values_needed(1, 0.01) <= 40);
  CHECK(values_needed(0.5, 0.01) > values_needed(1, 0.01));
  CHECK(values_needed(30, 0.01) >= kSamplesMin);
}

TEST_CASE("an outlier does not hide a difference that all other values show") {
  std::vector<double> values;
  Rng rng(7);
  for (int i = 0; i < 40; ++i) values.push_back(0.3 + 0.02 * normal(rng));
  values[5] = values[25] = -4;
  CHECK(centre_interval(values, 0.01).above_zero());
}

TEST_CASE("samples differ by the difference of their centres") {
  const std::vector<double> twos(4, 2.0);
  const std::vector<double> threes(5, 3.0);
  CHECK(difference_of_centres(twos, threes, 0.05).above_zero());
  CHECK(difference_of_centres(threes, twos, 0.05).below_zero());
  const Interval same = difference_of_centres(twos, twos, 0.05);
  CHECK_FALSE((same.above_zero() || same.below_zero()));
}

TEST_CASE("the median of an even number of values is the mean of the middle two") {
  CHECK(median_of({3, 1, 2}) == 2);
  CHECK(median_of({4, 1, 3, 2}) == 2.5);
  CHECK(median_of({7}) == 7);
}

}  // namespace pbox::placement
