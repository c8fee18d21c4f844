#include "appliance/placement/confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace pbox::placement {
namespace {

// Variance of the prior of the effect size, which is the mean in standard deviations. It is large
// so that three values can suffice for a large effect. A small effect then needs more values, but
// their number grows only with the logarithm of this variance.
constexpr double kEffectVariance = 1000;

constexpr Interval kAnywhere = {-std::numeric_limits<double>::infinity(),
                                std::numeric_limits<double>::infinity()};

// Inverts the t-test.
Interval mean_interval(std::span<const double> values, double error) {
  const auto [mean, variance] = moments_of(values);
  const double count = static_cast<double>(values.size());
  // The Bayes factor against a mean m, where t is Student's statistic of the values minus m, is
  //   ratio^(-1/2) ((1 + t^2 / (count - 1)) / (1 + t^2 / (ratio (count - 1))))^(count / 2).
  // If m is the mean, the probability that it ever exceeds 1 / error is at most `error` (Ville's
  // inequality).
  const double ratio = 1 + count * kEffectVariance;
  const double bound = std::pow(std::sqrt(ratio) / error, 2 / count);
  if (bound >= ratio) return kAnywhere;
  const double t = std::sqrt((count - 1) * (bound - 1) / (1 - bound / ratio));
  const double half_width = t * std::sqrt(variance / count);
  return {mean - half_width, mean + half_width};
}

// Inverts the sign test, whose probability of a value above the median has a uniform prior.
Interval median_interval(std::span<const double> values, double error) {
  const size_t count = values.size();
  // The Bayes factor against a median with `above` values above it is
  //   2^count / ((count + 1) binomial(count, above)).
  // Finds the fewest values on one side that rule the median out, counting down from all.
  double log_factor = static_cast<double>(count) * std::log(2) - std::log(count + 1.0);
  size_t above = count + 1;
  while (above > 0 && log_factor >= -std::log(error)) {
    --above;
    // binomial(count, above - 1) = binomial(count, above) above / (count - above + 1)
    log_factor -= std::log(static_cast<double>(above) / static_cast<double>(count - above + 1));
  }
  if (above > count) return kAnywhere;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  PBOX_DCHECK(2 * above > count);
  return {sorted[count - above], sorted[above - 1]};
}

}  // namespace

SampleMoments moments_of(std::span<const double> values) {
  PBOX_CHECK(values.size() >= 2);
  const double count = static_cast<double>(values.size());
  SampleMoments moments;
  moments.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  for (const double value : values) {
    moments.variance += (value - moments.mean) * (value - moments.mean) / (count - 1);
  }
  return moments;
}

double median_of(std::vector<double> values) {
  PBOX_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Interval centre_interval(std::span<const double> values, double error) {
  PBOX_CHECK(error > 0 && error < 1);
  if (values.size() < kSamplesMin) return kAnywhere;
  const Interval mean = mean_interval(values, error / 2);
  const Interval median = median_interval(values, error / 2);
  return median.high - median.low < mean.high - mean.low ? median : mean;
}

Interval difference_of_centres(std::span<const double> before, std::span<const double> after,
                               double error) {
  const Interval first = centre_interval(before, error / 2);
  const Interval second = centre_interval(after, error / 2);
  return {second.low - first.high, second.high - first.low};
}

}  // namespace pbox::placement
