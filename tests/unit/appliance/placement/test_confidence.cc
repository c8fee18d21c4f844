#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "appliance/placement/confidence.h"
#include "base/rng.h"

namespace pbox::placement {

TEST_CASE("quantiles of Student's t agree with the printed tables") {
  CHECK(student_t_975(3) == Approx(3.182).margin(0.02));
  CHECK(student_t_975(5) == Approx(2.571).margin(0.002));
  CHECK(student_t_975(10) == Approx(2.228).margin(0.001));
  CHECK(student_t_975(30) == Approx(2.042).margin(0.001));
  CHECK(student_t_975(1e9) == Approx(1.960).margin(0.001));
}

TEST_CASE("a known pair of samples has its known interval") {
  // Means 3 and 8, variances 2.5 and 10, standard error sqrt(2.5), 5.882 degrees of freedom.
  const Interval interval =
      difference_of_means(std::vector<double>{1, 2, 3, 4, 5}, std::vector<double>{4, 6, 8, 10, 12});
  const double half_width = student_t_975(5.88235) * std::sqrt(2.5);
  CHECK(interval.low == Approx(5 - half_width));
  CHECK(interval.high == Approx(5 + half_width));
  CHECK(interval.above_zero());
}

TEST_CASE("samples without variance differ by exactly the difference of their means") {
  const std::vector<double> twos(4, 2.0);
  const std::vector<double> threes(4, 3.0);
  CHECK(difference_of_means(twos, threes).above_zero());
  CHECK(difference_of_means(threes, twos).below_zero());
  const Interval same = difference_of_means(twos, twos);
  CHECK_FALSE((same.above_zero() || same.below_zero()));
}

TEST_CASE("about one in twenty pairs of samples of one distribution appears to differ") {
  Rng rng(3);
  int differ = 0;
  for (int repetition = 0; repetition < 4000; ++repetition) {
    std::vector<double> before(16);
    std::vector<double> after(16);
    for (double& value : before) value = rng.unit() + rng.unit() + rng.unit();
    for (double& value : after) value = rng.unit() + rng.unit() + rng.unit();
    const Interval interval = difference_of_means(before, after);
    differ += interval.above_zero() || interval.below_zero();
  }
  CHECK(differ > 120);
  CHECK(differ < 280);
}

}  // namespace pbox::placement
