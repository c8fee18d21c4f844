// Gradients whose sum tells who contributed, how often, and in which round. An element is a digit
// in 1..3, drawn from rank, process, tensor, round and position, shifted to three bits that belong
// to its rank alone. A rank that counts twice shows as a digit that nobody pushed. A new process of
// a rank computes other gradients, as it may in training.
// Sums of whole numbers below 2^24 are exact in f32 in any order. The same holds for types of two
// bytes below 2^11 (f16) and 2^8 (bf16).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

// In jobs with more ranks, digits share bits, and sums are not checked.
inline constexpr uint32_t kRanksToldApart = 8;

class Gradients {
 public:
  Gradients(uint64_t seed, uint32_t job, const JobOptions& options)
      : stream_(seed * 64 + job), options_(options) {}

  // A rank's part of a sum, computed for consecutive elements of a tensor's round. `process` counts
  // the rank's processes, from 0.
  class Digits {
   public:
    Digits(const Gradients& gradients, uint32_t rank, uint32_t process, uint32_t tensor,
           uint32_t round);
    uint32_t at(uint64_t element) {
      if (element / 16 != block_) draw(element / 16);
      return 1 + static_cast<uint32_t>((bits_ >> (4 * (element % 16))) & 15) % 3;
    }

   private:
    void draw(uint64_t block);
    uint64_t stream_;
    uint64_t block_ = UINT64_MAX;
    uint64_t bits_ = 0;
  };
  // Fills in the tensor that the rank pushes, in wire format. Round 0 of a job in optimize mode is
  // its initial weights.
  void fill(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
            std::vector<std::byte>& bytes) const;
  // Sums the first processes' gradients of the ranks whose bits are set in `ranks`, from element
  // `first` on.
  void sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t first,
           std::span<float> sums) const;
  // Explains how a sum differs from the expected one: "rank 0: twice or of another round; rank 2:
  // missing".
  std::string explain(double sum, uint32_t ranks, uint32_t tensor, uint32_t round,
                      uint64_t element) const;

  const JobOptions& options() const { return options_; }

 private:
  uint64_t stream_;
  const JobOptions& options_;
};

}  // namespace pbox::sim
