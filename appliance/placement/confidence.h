// Tests whether two samples differ: Welch's interval (Welch 1947), for unequal variances. Any
// thread.
#pragma once

#include <span>

namespace pbox::placement {

struct Interval {
  double low = 0;
  double high = 0;

  bool below_zero() const { return high < 0; }
  bool above_zero() const { return low > 0; }
};

// Mean and unbiased variance (divided by count - 1). At least two values.
struct SampleMoments {
  double mean = 0;
  double variance = 0;
};
SampleMoments moments_of(std::span<const double> values);

// Returns the 97.5 % quantile of Student's t distribution for `degrees_of_freedom` >= 3, to three
// digits (expansion around the normal quantile: Abramowitz and Stegun 26.7.5).
double student_t_975(double degrees_of_freedom);

// Returns the 95 % confidence interval of mean(after) - mean(before). Each sample needs at least
// four values. They are assumed to be independent; if neighbouring values correlate, the interval
// is too narrow.
Interval difference_of_means(std::span<const double> before, std::span<const double> after);

}  // namespace pbox::placement
