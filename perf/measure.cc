#include "perf/measure.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace pbox::perf {

void measure_interleaved(std::vector<Alternative>& alternatives, size_t repetitions) {
  for (Alternative& alternative : alternatives) alternative.pass();
  for (size_t round = 0; round < repetitions; ++round) {
    for (size_t turn = 0; turn < alternatives.size(); ++turn) {
      Alternative& alternative = alternatives[(round + turn) % alternatives.size()];
      const uint64_t start_ns = monotonic_ns();
      alternative.pass();
      const uint64_t elapsed_ns = monotonic_ns() - start_ns;
      alternative.seconds.push_back(static_cast<double>(elapsed_ns) * 1e-9);
    }
  }
}

double median(std::vector<double> values) {
  PBOX_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::vector<double> ratios(const std::vector<double>& over, const std::vector<double>& under) {
  PBOX_CHECK(over.size() == under.size());
  std::vector<double> ratios;
  for (size_t turn = 0; turn < over.size(); ++turn) ratios.push_back(over[turn] / under[turn]);
  return ratios;
}

double median_ratio(const std::vector<double>& over, const std::vector<double>& under) {
  return median(ratios(over, under));
}

double quantile(std::vector<double> values, double share) {
  PBOX_CHECK(!values.empty() && share > 0 && share <= 1);
  const auto count = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(count, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Spread spread(std::vector<double> values) {
  const double low = quantile(values, 0.25), high = quantile(values, 0.75);
  return {.low = low, .median = median(std::move(values)), .high = high};
}

double growth_exponent(const std::vector<double>& sizes, const std::vector<double>& costs) {
  PBOX_CHECK(sizes.size() == costs.size() && sizes.size() >= 2);
  const double count = static_cast<double>(sizes.size());
  double mean_x = 0;
  double mean_y = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    mean_x += std::log(sizes[i]) / count;
    mean_y += std::log(costs[i]) / count;
  }
  double covariance = 0;
  double variance = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const double x = std::log(sizes[i]) - mean_x;
    covariance += x * (std::log(costs[i]) - mean_y);
    variance += x * x;
  }
  PBOX_CHECK(variance > 0);
  return covariance / variance;
}

double gigabytes_per_second(const Alternative& alternative) {
  return alternative.bytes / median(alternative.seconds) * 1e-9;
}

}  // namespace pbox::perf
