#include "appliance/placement/confidence.h"

#include <cmath>
#include <numeric>

#include "base/check.h"

namespace pbox::placement {

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

double student_t_975(double degrees_of_freedom) {
  constexpr double z = 1.959963985;
  const double z2 = z * z;
  const double n = degrees_of_freedom;
  double t = z;
  t += z * (z2 + 1) / (4 * n);
  t += z * ((5 * z2 + 16) * z2 + 3) / (96 * n * n);
  t += z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / (384 * n * n * n);
  t += z * ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / (92160 * n * n * n * n);
  return t;
}

Interval difference_of_means(std::span<const double> before, std::span<const double> after) {
  PBOX_CHECK(before.size() >= 4 && after.size() >= 4);
  const SampleMoments first = moments_of(before);
  const SampleMoments second = moments_of(after);
  const double first_error = first.variance / static_cast<double>(before.size());
  const double second_error = second.variance / static_cast<double>(after.size());
  const double error = first_error + second_error;
  const double difference = second.mean - first.mean;
  if (error <= 0) return {difference, difference};
  const double degrees_of_freedom =
      error * error /
      (first_error * first_error / static_cast<double>(before.size() - 1) +
       second_error * second_error / static_cast<double>(after.size() - 1));
  const double half_width = student_t_975(degrees_of_freedom) * std::sqrt(error);
  return {difference - half_width, difference + half_width};
}

}  // namespace pbox::placement
