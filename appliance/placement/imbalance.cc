#include "appliance/placement/imbalance.h"

#include <algorithm>
#include <cmath>

#include "appliance/placement/confidence.h"
#include "base/check.h"

namespace pbox::placement {
namespace {

// Returns the time per iteration that shares in proportion to the rates would save, if the boxes
// need `seconds` for `bytes`.
double gain_of(std::span<const double> seconds, std::span<const double> bytes,
               std::span<const double> spare_rates) {
  double slowest = 0;
  double total = 0;
  double rate = 0;
  for (size_t box = 0; box < bytes.size(); ++box) {
    slowest = std::max(slowest, seconds[box]);
    total += bytes[box];
    rate += seconds[box] > 0 ? bytes[box] / seconds[box] : spare_rates[box];
  }
  return rate > 0 ? slowest - total / rate : 0;
}

// Tests the newest `samples` samples. `log_sums`: by box, the sum of log_busy over these samples.
std::optional<Imbalance> imbalance_of(const std::deque<Sample>& window, size_t samples,
                                      std::span<const double> log_sums,
                                      std::span<const double> bytes,
                                      std::span<const double> spare_rates, double error) {
  Imbalance found;
  found.samples = samples;
  size_t boxes = 0;
  for (size_t box = 0; box < bytes.size(); ++box) {
    if (bytes[box] <= 0) continue;
    if (boxes == 0 || log_sums[box] > log_sums[found.slowest]) found.slowest = box;
    if (boxes == 0 || log_sums[box] < log_sums[found.fastest]) found.fastest = box;
    ++boxes;
  }
  if (boxes < 2 || found.slowest == found.fastest) return std::nullopt;
  std::vector<double> apart;
  for (size_t index = window.size() - samples; index < window.size(); ++index) {
    const auto& log_busy = window[index].log_busy;
    apart.push_back(log_busy[found.slowest] - log_busy[found.fastest]);
  }
  // Any two boxes could have been the slowest and the fastest, so all pairs share the error.
  const double pairs = static_cast<double>(boxes * (boxes - 1));
  const Interval interval = centre_interval(apart, error / pairs);
  if (!interval.above_zero()) return std::nullopt;
  const double certain = std::exp((interval.low - interval.high) / 2);
  const double count = static_cast<double>(samples);
  const double fastest = std::exp(log_sums[found.fastest] / count);
  for (size_t box = 0; box < bytes.size(); ++box) {
    const double seconds = bytes[box] > 0 ? std::exp(log_sums[box] / count) : 0;
    found.seconds.push_back(seconds);
    found.certain_seconds.push_back(seconds > 0 ? std::max(fastest, certain * seconds) : 0);
  }
  found.gain_seconds = gain_of(found.certain_seconds, bytes, spare_rates);
  return found;
}

}  // namespace

std::optional<Imbalance> find_imbalance(const std::deque<Sample>& window,
                                        std::span<const double> bytes,
                                        std::span<const double> spare_rates, size_t samples_min,
                                        double error) {
  PBOX_CHECK(samples_min >= kSamplesMin && bytes.size() == spare_rates.size());
  std::optional<Imbalance> best;
  std::vector<double> log_sums(bytes.size());
  size_t next = samples_min;
  for (size_t samples = 1; samples <= window.size(); ++samples) {
    const auto& log_busy = window[window.size() - samples].log_busy;
    PBOX_DCHECK(log_busy.size() == bytes.size());
    for (size_t box = 0; box < bytes.size(); ++box) log_sums[box] += log_busy[box];
    if (samples < next) continue;
    next += std::max<size_t>(1, next / 8);  // neighbouring lengths of long runs differ little
    auto found = imbalance_of(window, samples, log_sums, bytes, spare_rates, error);
    if (found && (!best || found->gain_seconds > best->gain_seconds)) best = std::move(found);
  }
  return best && best->gain_seconds > 0 ? best : std::nullopt;
}

}  // namespace pbox::placement
