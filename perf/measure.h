// Timing of alternatives that are compared with each other. Passes are interleaved, so that changes
// of the machine (frequency, other programs) affect all alternatives equally. Medians summarise the
// passes.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace pbox::perf {

struct Alternative {
  std::string name;
  double bytes = 0;               // bytes that one pass reads plus those that it writes
  std::function<void()> pass;     // the timed function
  std::vector<double> seconds{};  // duration of each timed pass
};

// Runs one untimed pass of each alternative, then `repetitions` timed rounds over all of them. Each
// round starts with the next alternative.
void measure_interleaved(std::vector<Alternative>& alternatives, size_t repetitions);

// Returns the median. For an even number of values, that is the mean of the middle two. Requires at
// least one value.
double median(std::vector<double> values);

// Returns the median of over[i] / under[i]. Both values of a turn i are measured close together, so
// a slow phase of the machine affects both and cancels out. Requires equal lengths, at least one.
double median_ratio(const std::vector<double>& over, const std::vector<double>& under);

// Returns over[i] / under[i] of each turn. Requires equal lengths.
std::vector<double> ratios(const std::vector<double>& over, const std::vector<double>& under);

// The median of some values, and their quartiles, between which half of them lie.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};
// Requires at least one value.
Spread spread(std::vector<double> values);

// Returns the smallest value that at least this share of the values, in (0, 1], does not exceed.
// Requires at least one value.
double quantile(std::vector<double> values, double share);

// Returns the exponent of the power of the size that fits the costs best: the slope of the straight
// line through the logarithms. Requires equal lengths, at least two different sizes, and values
// above 0.
double growth_exponent(const std::vector<double>& sizes, const std::vector<double>& costs);

// Returns the rate at the median time, in 1e9 bytes per second.
double gigabytes_per_second(const Alternative& alternative);

}  // namespace pbox::perf
