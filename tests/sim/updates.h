// Gradients for jobs whose model is not BSP. A weight shows how many updates of which rank it
// contains. Each rank has its own bits of a weight, and each update adds a digit there: 1, or
// alternately 1 and 2 if there is room, so that a round that counts twice is not taken for the next
// one. All values are whole numbers that the type represents exactly, in any order of additions.
//
// A rank pushes some rows of a table in each round, others in every second or fifth round or never.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

class Updates {
 public:
  explicit Updates(const JobOptions& options);

  // Returns the largest number of rounds whose updates fit a weight, including the initial weights.
  static uint32_t rounds_max(const JobOptions& options);

  // Returns whether the rank pushes the tensor's element in the round. In round 0 it pushes all.
  bool pushes(uint32_t rank, uint32_t round, uint32_t tensor, uint64_t element) const;
  // Fills in a whole tensor in wire format: the gradient whose step is the rank's update of that
  // round, or in round 0 its initial weights, of which only rank 0's count. From round
  // options.rounds on the gradient is 0.
  void fill(uint32_t rank, uint32_t round, uint32_t tensor, std::vector<std::byte>& bytes) const;

  // Returns `count` weights as whole numbers; nothing if some cannot be sums of updates.
  std::optional<std::vector<uint32_t>> whole(const std::byte* weights, uint32_t count) const;
  // Returns how many of the rank's updates each of these weights contains; nothing if there is no
  // such number. The weights begin at element `first` of a tensor. The updates are those of the
  // rounds below that number, or in a job that drops rounds those of any rounds. If a table's rows
  // allow several numbers, the largest that is at most `most` is returned.
  std::optional<uint32_t> count(uint32_t rank, std::span<const uint32_t> weights, uint32_t tensor,
                                uint64_t first, uint32_t most) const;

 private:
  uint32_t digit(uint32_t rank, uint32_t round, uint64_t element) const;
  uint32_t sum_below(uint32_t rank, uint32_t round, uint64_t element) const;
  static uint32_t bits(const JobOptions& options);
  std::optional<uint32_t> count_rows(uint32_t rank, std::span<const uint32_t> weights,
                                     uint32_t tensor, uint64_t first, uint32_t most) const;

  const JobOptions& options_;
  uint32_t bits_;
  bool alternates_;
  uint32_t first_[2] = {0, 1};  // first round whose update counts: of rank 0, of the others
};

}  // namespace pbox::sim
