// Gradients whose sum tells who contributed, how often, and in which round. An element is a digit
// in 1..3, drawn from rank, process, tensor, round and position, shifted to three bits that belong
// to its rank alone. A rank that counts twice shows as a digit that no rank pushed. A new process
// of a rank computes different gradients, as it may in training. An element counts as the digit 0
// if its rank pushes an unsound value, if its rank does not push this row of a table, or if its
// fragment is zero. Sums of whole numbers below 2^24 are exact in f32 in any order. The same holds
// for types of two bytes below 2^11 (f16) and 2^8 (bf16).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/sim/options.h"

namespace pbox::sim {

// The most ranks that a sum can tell apart. In jobs with more ranks digits share bits, and sums are
// not checked.
inline constexpr uint32_t kRanksToldApart = 8;

// Returns a value that the guard calls unsound: an infinity, a NaN, or a value beyond its bound.
float unsound_value(const wire::GuardSpec& guard, uint64_t element);

class Gradients {
 public:
  Gradients(uint64_t seed, uint32_t job, const JobOptions& options);

  // Returns a rank's part of the sum, by element of the tensor: digits of 1 to 3, or 0 (see above).
  // `process` counts the rank's processes, from 0. Valid until the next call.
  std::span<const uint8_t> digits(uint32_t rank, uint32_t process, uint32_t tensor,
                                  uint32_t round) const;
  // Fills in the tensor that the rank pushes, in wire format. Round 0 of a job in optimize mode is
  // its initial weights.
  void fill(uint32_t rank, uint32_t process, uint32_t tensor, uint32_t round,
            std::vector<std::byte>& bytes) const;
  // Fills in a compressed tensor's values (block_oracle.h), which are the same for all processes of
  // the rank.
  void fill_compressed(uint32_t rank, uint32_t tensor, uint32_t round,
                       std::span<float> values) const;
  // Sums the first processes' gradients of the ranks whose bits are set in `ranks`, from element
  // `first` on.
  void sum(uint32_t ranks, uint32_t tensor, uint32_t round, uint64_t first,
           std::span<float> sums) const;
  // Explains how a sum differs from the expected one: "rank 0: twice or of another round; rank 2:
  // missing".
  std::string explain(double sum, uint32_t ranks, uint32_t tensor, uint32_t round,
                      uint64_t element) const;

  // The one unsound value that is pushed with guard `reject`.
  struct Rejected {
    uint32_t rank = 0, tensor = 0, round = 0, element = 0;
  };
  // Returns nothing if the job's guard is not `reject`, or no rank pushes an unsound value.
  const std::optional<Rejected>& rejected() const { return rejected_; }

  const JobOptions& options() const { return options_; }

 private:
  std::vector<uint8_t> draw_digits(uint64_t stream, uint32_t tensor, uint32_t round) const;
  void make_zeros(uint32_t tensor, uint32_t round, uint64_t stream,
                  std::vector<uint8_t>& digits) const;
  void leave_rows_out(uint64_t stream, uint32_t tensor, uint32_t round,
                      std::vector<uint8_t>& digits) const;

  uint64_t stream_;
  const JobOptions& options_;
  std::optional<Rejected> rejected_;
  // Digits drawn so far. They are kept because boxes and ranks are compared with them often.
  mutable std::unordered_map<uint64_t, std::vector<uint8_t>> drawn_;
  mutable size_t drawn_bytes_ = 0;
};

}  // namespace pbox::sim
