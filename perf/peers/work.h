// Gradients that every compared system sums, and the check of their sums. A value depends on rank,
// iteration and index, so the check detects a stale, missing, doubled or misplaced contribution.
// Values are small integers, so their sum over the ranks is exact in f32 in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pbox::perf {

inline constexpr uint32_t kPatternRanksMax = 64;
inline constexpr uint32_t kPatternBaseMax = 16;

// Returns the value that all ranks share at one element, in [1, kPatternBaseMax].
constexpr uint32_t pattern_base(uint32_t seed, uint32_t iteration, uint32_t index) {
  return 1 + ((index * 0x9e3779b1u + iteration * 0x85ebca6bu + seed * 0xc2b2ae35u) >> 28);
}

// Returns the square of rank + 1. With linear weights, two ranks could be mistaken for two others
// with the same sum.
constexpr uint32_t pattern_weight(uint32_t rank) {
  return (rank + 1) * (rank + 1);
}

constexpr uint32_t pattern_weight_sum(uint32_t rank_count) {
  uint32_t sum = 0;
  for (uint32_t rank = 0; rank < rank_count; ++rank) sum += pattern_weight(rank);
  return sum;
}

// Every partial sum is an integer below 2^24, and f32 represents these exactly.
static_assert(uint64_t{kPatternBaseMax} * pattern_weight_sum(kPatternRanksMax) < (1u << 24));

// Tensor elements carry indices [first_index, first_index + gradient.size()) of the model.
inline void fill_gradient(std::span<float> gradient, uint32_t seed, uint32_t iteration,
                          uint32_t rank, uint32_t first_index) {
  const uint32_t weight = pattern_weight(rank);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const uint32_t index = first_index + static_cast<uint32_t>(i);
    gradient[i] =
        static_cast<float>(static_cast<int32_t>(weight * pattern_base(seed, iteration, index)));
  }
}

// Nine of ten blocks of a sparse gradient are zero, the same ones on all ranks.
inline constexpr uint32_t kSparseBlockElements = 4096;
constexpr bool is_left_out(uint32_t seed, uint32_t iteration, uint32_t index) {
  const uint32_t block = index / kSparseBlockElements;
  const uint32_t draw = block * 0x9e3779b1u + iteration * 0x85ebca6bu + seed * 0xc2b2ae35u;
  return (draw >> 16) % 10 != 0;
}

// Returns how many elements differ from the pattern times `weight`.
inline uint64_t count_wrong_values(std::span<const float> values, uint32_t weight, uint32_t seed,
                                   uint32_t iteration, uint32_t first_index) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t index = first_index + static_cast<uint32_t>(i);
    const auto expected =
        static_cast<float>(static_cast<int32_t>(weight * pattern_base(seed, iteration, index)));
    wrong += values[i] != expected;
  }
  return wrong;
}

// Returns how many elements differ from the sum over ranks [0, rank_count).
inline uint64_t count_wrong_sums(std::span<const float> sum, uint32_t seed, uint32_t iteration,
                                 uint32_t rank_count, uint32_t first_index) {
  return count_wrong_values(sum, pattern_weight_sum(rank_count), seed, iteration, first_index);
}

}  // namespace pbox::perf
