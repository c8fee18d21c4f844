// What ranks push in jobs whose consistency model is not bsp, so that a weight says how many of
// which rank's updates are in it, each once. A rank has bits of a weight of its own; each of its
// updates adds a digit there: 1, or by turns 1 and 2 where there is room, so that a round that
// counts twice does not pass for the next one. Whole numbers that the type holds exactly, in any
// order of adding.
#pragma once

#include <optional>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

class Updates {
 public:
  explicit Updates(const JobOptions& options);

  // Including the initial weights: more do not fit.
  static uint32_t rounds_max(const JobOptions& options);

  // A whole tensor as it goes over the wire: the gradient whose step is the rank's update of that
  // round, or in round 0 its initial weights, of which rank 0's count. From options.rounds on: 0.
  void fill(uint32_t rank, uint32_t round, std::vector<std::byte>& bytes) const;

  // Of `count` weights from element `first` of a tensor on: how many of the rank's updates are in
  // them, the same in all; nothing if there is no such number. Its rounds below the number are in,
  // counted from 0; of a job that drops, as many of whichever rounds.
  std::optional<uint32_t> count(uint32_t rank, const std::byte* weights, uint64_t first,
                                uint32_t count) const;

 private:
  uint32_t digit_of(float weight, uint32_t rank) const;
  uint32_t digit(uint32_t rank, uint32_t round, uint64_t element) const;
  uint32_t sum_below(uint32_t rank, uint32_t round, uint64_t element) const;
  static uint32_t bits(const JobOptions& options);

  const JobOptions& options_;
  uint32_t bits_;
  bool alternates_;
  uint32_t first_[2] = {0, 1};  // round whose update is in the weights: of rank 0, of the others
};

}  // namespace pbox::sim
