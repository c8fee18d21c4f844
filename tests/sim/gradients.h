// Gradients whose sum tells who contributed, how often, and in which round. An element is a digit
// in 1..3, drawn from rank, process, tensor, round and position, shifted to three bits that belong
// to its rank alone. A rank that counts twice shows as a digit that nobody pushed. A new process of
// a rank computes other gradients, as it may in training.
// Where a job's ranks push unsound values too, such an element counts as the digit 0.
// Sums of whole numbers below 2^24 are exact in f32 in any order. The same holds for types of two
// bytes below 2^11 (f16) and 2^8 (bf16).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

// In jobs with more ranks, digits share bits, and sums are not checked.
inline constexpr uint32_t kRanksToldApart = 8;

class Gradients {
 public:
  Gradients(uint64_t seed, uint32_t job, const JobOptions& options);

  // A rank's part of a sum, computed for consecutive elements of a tensor's round. `process` counts
  // the rank's processes, from 0.
  class Digits {
   public:
    Digits(const Gradients& gradients, uint32_t rank, uint32_t process, uint32_t tensor,
           uint32_t round);
    uint32_t at(uint64_t element) { return is_unsound(element) ? 0 : 1 + drawn_at(element) % 3; }
    // The first element of a fragment never is, so a fragment with a contribution shows it.
    bool is_unsound(uint64_t element) {
      return has_unsound_ && element % 16 != 0 && drawn_at(element) == kUnsound;
    }

   private:
    static constexpr uint32_t kUnsound = 15;
    uint32_t drawn_at(uint64_t element) {
      if (element / 16 != block_) draw(element / 16);
      return static_cast<uint32_t>((bits_ >> (4 * (element % 16))) & 15);
    }
    void draw(uint64_t block);
    uint64_t stream_;
    bool has_unsound_;
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

  // Guard reject: the one push with an unsound value.
  struct Rejected {
    uint32_t rank = 0, tensor = 0, round = 0, element = 0;
  };
  // Nothing if the job's guard is another, or no rank pushes an unsound value.
  const std::optional<Rejected>& rejected() const { return rejected_; }

  const JobOptions& options() const { return options_; }

 private:
  float unsound_value(uint64_t element) const;

  uint64_t stream_;
  const JobOptions& options_;
  std::optional<Rejected> rejected_;
};

}  // namespace pbox::sim
