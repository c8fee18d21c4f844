// Encodes and decodes block-scaled integers (nic/wire/blocks.h), vectorised for the CPU that is
// found at start. Workers encode gradients and decode results. A box decodes and adds pushes in one
// pass, and encodes each sum once.
//
// Error feedback: the encoder adds the residue to the values, and keeps in the residue what
// rounding has taken from them (Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech
// 2014). Rounding is stochastic, with random numbers that depend on what is encoded (rounding.h).
//
// All targets agree bit for bit with reference.h, which also defines blocks with infinities, NaNs,
// zeros and very small values. IEEE 754 leaves one exception open: the sum of two NaNs may be
// either of them.
//
// Counts are in elements and may be 0. A payload may have any alignment. Arrays do not overlap. Any
// thread may call the functions. No function allocates or throws.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/quantize/rounding.h"
#include "nic/wire/blocks.h"

namespace pbox::quantize {

// Writes the blocks of values[i] + residue[i], which have wire::payload_bytes() of `count`.
using EncodeFunction = void (*)(std::byte* blocks, const float* values, float* residue,
                                size_t count, RoundingKey key);
// Sets accumulator[i] to element i of the blocks (store), or adds the element to it (add). Returns
// true if all elements are sound: their magnitude is at most `limit`, which is finite.
using AccumulateFunction = bool (*)(float* accumulator, const std::byte* blocks, size_t count,
                                    float limit);

inline constexpr size_t kFormatCount = 2;

constexpr size_t format_index(wire::Dtype dtype) {
  PBOX_DCHECK(wire::is_in_blocks(dtype));
  return dtype == wire::Dtype::kQ8 ? 0 : 1;
}

// The functions for one instruction set, by format_index().
struct Kernels {
  int64_t target = 0;  // a HWY_* target bit
  std::array<EncodeFunction, kFormatCount> encode{};
  std::array<AccumulateFunction, kFormatCount> store{};
  std::array<AccumulateFunction, kFormatCount> add{};
  // Like store and add, but an element that is not sound counts as 0.
  std::array<AccumulateFunction, kFormatCount> store_sound{};
  std::array<AccumulateFunction, kFormatCount> add_sound{};
};

// Returns the table of the best target for this CPU, chosen on the first call. The returned
// reference stays valid.
const Kernels& kernels();

// Returns the sum of the squares of the elements, in f64. Infinities and NaNs count as 0.
double finite_squares(wire::Dtype dtype, const std::byte* blocks, size_t count);

struct TargetName {
  int64_t target;    // a HWY_* target bit
  const char* name;  // Highway's name
};

// Only for tests and benchmarks: return the targets that this build contains and this CPU can run,
// best first, and the table of one of them.
std::vector<TargetName> supported_targets();
Kernels kernels_for(int64_t target);

}  // namespace pbox::quantize
