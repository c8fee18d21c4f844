// Gradients whose sum says who contributed, how often, and of which round. An element is a digit in
// 1..3, drawn from rank, tensor, round and place, shifted to three bits that are its rank's alone:
// sums of whole numbers below 2^24 are exact in f32 in any order, as those of two bytes are below
// 2^11 (f16) and 2^8 (bf16), and a rank that counts twice shows as a digit that nobody pushed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

class Gradients {
 public:
  Gradients(uint64_t seed, uint32_t job, const JobOptions& options)
      : stream_(seed * 64 + job), options_(options) {}

  // What a rank pushes; round 0 of a job in optimize mode is its initial weights.
  float value(uint32_t rank, uint32_t tensor, uint32_t round, uint64_t element) const {
    return static_cast<float>(digit(rank, tensor, round, element) << (3 * rank));
  }
  uint32_t digit(uint32_t rank, uint32_t tensor, uint32_t round, uint64_t element) const;
  // A whole tensor as it goes over the wire.
  void fill(uint32_t rank, uint32_t tensor, uint32_t round, std::vector<std::byte>& bytes) const;
  // The sum over the ranks whose bits are set in `ranks`.
  float sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t element) const;
  // "rank 0: twice or of another round; rank 2: missing": how a sum differs from what it should be.
  std::string explain(double sum, uint32_t ranks, uint32_t tensor, uint32_t round,
                      uint64_t element) const;

  const JobOptions& options() const { return options_; }

 private:
  uint64_t stream_;
  const JobOptions& options_;
};

}  // namespace pbox::sim
