// Intervals for the centre of a distribution. A caller may look at them after every sample. Any
// thread.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pbox::placement {

struct Interval {
  double low = 0;
  double high = 0;

  bool below_zero() const { return high < 0; }
  bool above_zero() const { return low > 0; }
};

// Mean and unbiased variance (divided by count - 1) of at least two values.
struct SampleMoments {
  double mean = 0;
  double variance = 0;
};
SampleMoments moments_of(std::span<const double> values);

// Returns the median of at least one value; for an even number of values, the mean of the middle
// two.
double median_of(std::vector<double> values);

// Fewest values that make an interval finite.
inline constexpr size_t kSamplesMin = 3;

// Returns an interval that contains the centre of the values' distribution, which is assumed to be
// symmetric. It is a confidence sequence: the probability that the interval ever excludes the
// centre, at any of the sample sizes that a caller looks at, is at most `error` in (0, 1). So a
// caller may stop as soon as the interval is conclusive: after three values if the effect is large,
// after many if it is small. It is infinite for fewer than kSamplesMin values.
//
// It is the shorter of two intervals. The first inverts the t-test whose effect size has a
// normal prior (Lai, 1976; the closed form is in Wang and Ramdas, "Anytime-valid t-tests and
// confidence sequences for Gaussian means with unknown variance", 2024). It needs few values, which
// have to be normal; outliers widen it. The second inverts the sign test (Darling and Robbins,
// "Confidence sequences for mean, variance, and median", 1967). It needs more values and does not
// mind outliers. Values that correlate with their neighbours make both too short.
Interval centre_interval(std::span<const double> values, double error);

// Returns the interval of centre(after) - centre(before), which holds at any two sample sizes.
Interval difference_of_centres(std::span<const double> before, std::span<const double> after,
                               double error);

}  // namespace pbox::placement
