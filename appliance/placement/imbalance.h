// Finds out from the newest round times of a job's boxes whether some box is certainly slower than
// another. Pure; any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace pbox::placement {

// One observation of the boxes.
struct Sample {
  double rounds = 1;             // rounds that it covers
  double log_iteration = 0;      // logarithm of the seconds of an iteration
  std::vector<double> bytes;     // by box: bytes served
  std::vector<double> log_busy;  // by box: logarithm of the busy seconds, which are above 0
};

struct Imbalance {
  size_t samples = 0;  // number of newest samples that show it
  size_t slowest = 0;
  size_t fastest = 0;
  std::vector<double> seconds;  // by box: geometric mean of its busy time; 0: it has no bytes
  // By box: `seconds`, reduced so that the slowest box exceeds the fastest only by what is certain.
  std::vector<double> certain_seconds;
  // Time per iteration that shares in proportion to the rates would certainly save.
  double gain_seconds = 0;
};

// Returns the imbalance that promises the greatest certain gain; nullopt if there is none.
//
// Each run of at least `samples_min` newest samples is tested on its own, because a box
// may have become slow at any time: a straggler that has just appeared is found by a short run, a
// small difference by a long one. The paired logarithms of two boxes' times are tested, so a
// disturbance of all boxes cancels out, and the test is sequential (confidence.h): `error` is the
// probability that a run finds a difference between equal boxes.
//
// `bytes`: by box, the bytes that it owns; a box without any is not tested. `spare_rates`: by box,
// the bytes per second that it would add if it owns none; 0 for a box that owns some.
std::optional<Imbalance> find_imbalance(const std::deque<Sample>& window,
                                        std::span<const double> bytes,
                                        std::span<const double> spare_rates, size_t samples_min,
                                        double error);

}  // namespace pbox::placement
