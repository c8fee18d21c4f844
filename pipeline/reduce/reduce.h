// Sums and conversions of payloads, vectorised for the CPU that is found at start (AVX-512, AVX2,
// scalar; NEON and SVE on Arm).
//
// Sums are in f32 whatever the payload's type, and are rounded once, on output: with 64 workers the
// worst-case error of summing in f16 would be 3 %, in bf16 25 %, in f32 4e-6 (Higham, "Accuracy and
// Stability of Numerical Algorithms", section 4.2).
//
// All targets agree bit for bit with reference.h, with one exception that IEEE 754 leaves open: the
// sum of two NaNs may be either of them. Denormals are kept everywhere.
//
// For all functions: counts are in elements, and may be 0. A payload may have any alignment. Arrays
// of f32 should be 64-byte aligned; that is not required, but each access that straddles a cache
// line costs time. Source and destination do not overlap unless a function allows it. No function
// allocates or throws. Any thread may call them; on the data path only the pipeline's core that
// owns the chunk does.
#pragma once

#include <array>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nic/wire/dtype.h"

namespace pbox::reduce {

// For the first arrival: accumulator[i] = widen(source[i]). Signalling NaNs of f16 become quiet.
// store() and add() return true if all elements of the source are sound: their magnitude is at most
// `limit`, which is finite. An infinity or a NaN is never sound.
bool store(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
           float limit = FLT_MAX);

// For later arrivals: accumulator[i] += widen(source[i]).
bool add(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
         float limit = FLT_MAX);

// values[i] *= factor.
void scale(float* values, float factor, size_t count);

// destination[i] = source[i], rounded to nearest, ties to even. Overflow gives infinity. A NaN
// stays a NaN: quiet, with the upper part of its payload. `destination` may be `source` (in place).
void narrow(wire::Dtype dtype, std::byte* destination, const float* source, size_t count);

// Returns the sum of the squares of all elements, in f64. Element i is added to partial sum
// i % kSquareSums, and the partial sums are added in ascending order, so that all targets agree.
double sum_squares(const float* values, size_t count);
inline constexpr size_t kSquareSums = 16;

// Returns true if no element is an infinity or a NaN.
bool all_finite(const float* values, size_t count);

// Returns the sum of the squares of the payload's elements, in f64 as sum_squares does. Infinities
// and NaNs count as 0.
double finite_squares(wire::Dtype dtype, const std::byte* source, size_t count);

using AccumulateFunction = bool (*)(float* accumulator, const std::byte* source, size_t count,
                                    float limit);
using NarrowFunction = void (*)(std::byte* destination, const float* source, size_t count);
using SquaresFunction = double (*)(const std::byte* source, size_t count);

// The functions above for one instruction set. A pipeline holds the best table for its CPU and
// indexes it by the chunk's dtype. A fragment thus costs a load and an indirect call, and no branch
// on the instruction set or the dtype.
struct Kernels {
  int64_t target = 0;                                         // a HWY_* target bit
  std::array<AccumulateFunction, wire::kDtypeCount> store{};  // indexed by Dtype
  std::array<AccumulateFunction, wire::kDtypeCount> add{};    // indexed by Dtype
  // Like store and add, but an element that is not sound counts as 0.
  std::array<AccumulateFunction, wire::kDtypeCount> store_sound{};  // indexed by Dtype
  std::array<AccumulateFunction, wire::kDtypeCount> add_sound{};    // indexed by Dtype
  std::array<SquaresFunction, wire::kDtypeCount> finite_squares{};  // indexed by Dtype
  std::array<NarrowFunction, wire::kDtypeCount> narrow{};           // indexed by Dtype
  void (*scale)(float* values, float factor, size_t count) = nullptr;
  bool (*all_finite)(const float* values, size_t count) = nullptr;
  double (*sum_squares)(const float* values, size_t count) = nullptr;
};

// Returns the table of the best target for this CPU, chosen on the first call. The returned
// reference stays valid.
const Kernels& kernels();

struct TargetName {
  int64_t target;    // a HWY_* target bit
  const char* name;  // Highway's name; "AVX3" is AVX-512
};

// Returns the targets that this build contains and this CPU can run, best first. Only for tests and
// benchmarks.
std::vector<TargetName> supported_targets();

// Returns the table of one of supported_targets(). Only for tests and benchmarks.
Kernels kernels_for(int64_t target);

}  // namespace pbox::reduce
