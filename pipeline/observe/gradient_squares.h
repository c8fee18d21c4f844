// The sum of the squares of a rank's gradient, over the chunks of one pipeline. From the norm an
// operator sees which rank harms a job. Measuring takes a second pass over each payload, so most
// rounds are left out.
//
// A rank may push two rounds at once. A round's sum is published once the rank has pushed all
// chunks of the pipeline, or once its place is needed for a later round, because a rank need not
// push every tensor in every round.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/counter.h"
#include "nic/wire/header.h"

namespace pbox::pipeline {

class GradientSquares {
 public:
  // Every kInterval-th round is measured, and rounds 1, 2, 4 and 8, for norms early in a job.
  static constexpr uint32_t kInterval = 16;
  static constexpr bool measures(uint32_t round) {
    return round % kInterval == 0 || (round < kInterval && std::has_single_bit(round));
  }

  // Adds a fragment of a round that is measured. `round_elements`: elements of a whole round. The
  // pipeline's core calls it.
  void add(uint32_t round, double squares, uint64_t elements, uint64_t round_elements) {
    Sum& sum = sums_[round & 1];
    if (sum.elements > 0 && sum.round != round) {
      if (wire::round_distance(round, sum.round) < 0) return;
      publish(sum);
      sum = {};
    }
    sum.round = round;
    sum.squares += squares;
    sum.elements += elements;
    if (sum.elements < round_elements) return;
    publish(sum);
    sum = {};
  }

  // Returns the sum of the newest published round; nullopt before the first. Any thread.
  std::optional<double> newest() const {
    if (published_.get() == 0) return std::nullopt;
    return std::bit_cast<double>(squares_.get());
  }

 private:
  struct Sum {
    uint32_t round = 0;
    double squares = 0;
    uint64_t elements = 0;  // 0: no round is being summed here
  };

  void publish(const Sum& sum) {
    const bool is_first = published_.get() == 0;
    const auto newest = static_cast<uint32_t>(published_.get() - 1);
    if (!is_first && wire::round_distance(sum.round, newest) < 0) return;
    squares_.set(std::bit_cast<uint64_t>(sum.squares));
    published_.set(uint64_t{sum.round} + 1);
  }

  std::array<Sum, 2> sums_{};      // by round & 1
  SingleWriterCounter squares_;    // the bits of a double
  SingleWriterCounter published_;  // round + 1; 0: none
};

}  // namespace pbox::pipeline
