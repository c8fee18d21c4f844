// Sums, minima and maxima for collectives, vectorised like reduce.h. The sums of f32, f16 and bf16
// are in reduce.h, whose rules for all functions hold here too.
//
// Integers are combined in their own width, and sums wrap around. Halves (f16, bf16) are widened to
// f32. A minimum or maximum with a NaN is a NaN, so it does not depend on the order of arrival.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "nic/wire/collective.h"
#include "nic/wire/dtype.h"

namespace pbox::reduce {

// For later arrivals: accumulator[i] = op(accumulator[i], source[i]), in place. The accumulator has
// aligned elements of the source's type, or of f32 if the source's type is f16 or bf16.
using CombineFunction = void (*)(std::byte* accumulator, const std::byte* source, size_t count);

// The functions for one instruction set, indexed by Dtype.
struct Combiners {
  // Null for the types whose sums are in reduce.h.
  std::array<CombineFunction, wire::kCollectiveDtypeCount> sum{};
  std::array<CombineFunction, wire::kCollectiveDtypeCount> min{};
  std::array<CombineFunction, wire::kCollectiveDtypeCount> max{};
};

// Returns the functions of one of supported_targets().
Combiners combiners_for(int64_t target);

// values[i] /= divisor, rounded to nearest. The values are f64 if `dtype` is, and f32 for the other
// floating-point types.
void divide(wire::Dtype dtype, std::byte* values, uint32_t divisor, size_t count);

}  // namespace pbox::reduce
