// The weight of a push: how much it counts in a weighted mean, for example the number of tokens
// that the worker has trained on. A PUSH or ZEROS of a weighted job carries the weight as a code of
// 12 bits, in `dtype_scale` above the type: a floating-point number with 5 bits of exponent and 7
// of mantissa. Whole numbers up to 256 are exact, others within 1/256. The worker multiplies its
// values by the weight that the code stands for, and the box divides the sum by the sum of these
// weights, so the rounding of the code adds no further error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/header.h"

namespace pbox::wire {

inline constexpr uint32_t kWeightMantissaBits = 7;
inline constexpr uint32_t kWeightCodes = 1u << 12;

// Returns the weight that a code below kWeightCodes stands for. Code 0, which a push without a
// weight has, stands for 1. The sum of the weights of all ranks that a job can have is exact.
constexpr uint64_t push_weight(uint32_t code) {
  constexpr uint32_t kUnit = 1u << kWeightMantissaBits;
  if (code == 0) return 1;
  const uint32_t exponent = code >> kWeightMantissaBits;
  const uint64_t mantissa = code & (kUnit - 1);
  return exponent == 0 ? mantissa : (kUnit + mantissa) << (exponent - 1);
}
inline constexpr uint64_t kPushWeightMax = push_weight(kWeightCodes - 1);
static_assert(kPushWeightMax < UINT64_MAX / limits::kWorkersPerJobMax / 2);

// Returns the code of the weight nearest to `weight`; nullopt unless that is in
// [1, kPushWeightMax].
inline std::optional<uint16_t> nearest_weight_code(double weight) {
  if (!(weight >= 1 && weight <= static_cast<double>(kPushWeightMax))) return std::nullopt;
  constexpr int kDigits = static_cast<int>(kWeightMantissaBits) + 1;
  const int shift = std::max(0, std::ilogb(weight) + 1 - kDigits);
  const auto rounded = static_cast<uint32_t>(std::lround(std::ldexp(weight, -shift)));
  // If rounding up makes a mantissa a power of two, the sum increments the exponent.
  return static_cast<uint16_t>((static_cast<uint32_t>(shift) << kWeightMantissaBits) + rounded);
}

// Returns the code in the header of a PUSH or ZEROS.
inline uint32_t weight_code(const Header& header) {
  return header.dtype_scale >> 4;
}

// Writes the code into a header that has its type already.
inline void set_weight_code(uint16_t code, Header& header) {
  PBOX_DCHECK(code < kWeightCodes && header.dtype_scale < 16);
  header.dtype_scale = static_cast<uint16_t>(header.dtype_scale | code << 4);
}

}  // namespace pbox::wire
