// Sums, minima and maxima of the types that collectives exchange beside gradients, vectorised as
// reduce.h is, which has the sums of f32, f16 and bf16. The rules of its functions hold here too.
//
// Integers are combined in their own width, and sums wrap around. Halves are widened to f32. In
// minima and maxima a NaN is the result, so they do not depend on the order of arrival.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "nic/wire/collective.h"
#include "nic/wire/dtype.h"

namespace pbox::reduce {

// Later arrivals: accumulator[i] = op(accumulator[i], source[i]), in place. The accumulator has
// elements of the source's type, or of f32 if that is f16 or bf16; it is aligned to its elements.
using CombineFunction = void (*)(std::byte* accumulator, const std::byte* source, size_t count);

// The functions for one instruction set, indexed by Dtype.
struct Combiners {
  // Null for the types whose sums reduce.h has.
  std::array<CombineFunction, wire::kCollectiveDtypeCount> sum{};
  std::array<CombineFunction, wire::kCollectiveDtypeCount> min{};
  std::array<CombineFunction, wire::kCollectiveDtypeCount> max{};
};

// Returns the functions of one of supported_targets().
Combiners combiners_for(int64_t target);

// values[i] /= divisor, rounded to nearest. The values are f64, or f32 for the other floating-point
// types.
void divide(wire::Dtype dtype, std::byte* values, uint32_t divisor, size_t count);

}  // namespace pbox::reduce
