// Timing of alternatives that are to be compared: interleaved, so that what the machine does
// meanwhile (frequency, neighbours) hits all alike, and summed up by medians.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace pbox::perf {

struct Alternative {
  std::string name;
  double bytes = 0;            // read plus written by one pass
  std::function<void()> pass;  // the timed function
  std::vector<double> seconds{};
};

// One untimed pass of each, then `repetitions` rounds over all, each round starting one further.
void measure_interleaved(std::vector<Alternative>& alternatives, size_t repetitions);

// Requires at least one value.
double median(std::vector<double> values);

// The median of over[i] / under[i], where i is one turn of both: what slowed the machine down in
// that turn, a neighbour for half a minute, say, is in both. Requires equal lengths, at least one.
double median_ratio(const std::vector<double>& over, const std::vector<double>& under);

// The exponent of the power of size that fits the costs best: the slope of a straight line through
// their logarithms. Requires equal lengths, at least two different sizes, and all above 0.
double growth_exponent(const std::vector<double>& sizes, const std::vector<double>& costs);

// 1e9 bytes per second, at the median time.
double gigabytes_per_second(const Alternative& alternative);

}  // namespace pbox::perf
