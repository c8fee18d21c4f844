// The definition of every operation of reduce.h, one element at a time, written to be read. Vector
// kernels have the same results bit for bit, and use its conversions on CPUs that have none.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "nic/wire/dtype.h"
#include "nic/wire/half.h"

namespace pbox::reduce::reference {

using wire::narrow_bf16;
using wire::narrow_f16;
using wire::widen_bf16;
using wire::widen_f16;

// Returns element `index` of a payload of any alignment, widened.
inline float load_element(wire::Dtype dtype, const std::byte* source, size_t index) {
  PBOX_DCHECK(source != nullptr);
  if (dtype == wire::Dtype::kF32) {
    float value;
    std::memcpy(&value, source + index * sizeof value, sizeof value);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, source + index * sizeof half, sizeof half);
  return dtype == wire::Dtype::kF16 ? widen_f16(half) : widen_bf16(half);
}

// Returns false for infinities, NaNs, and other values whose magnitude exceeds `limit`.
inline bool is_sound(float value, float limit) {
  return std::fabs(value) <= limit;
}

inline bool all_sound(wire::Dtype dtype, const std::byte* source, size_t count, float limit) {
  for (size_t i = 0; i < count; ++i) {
    if (!is_sound(load_element(dtype, source, i), limit)) return false;
  }
  return true;
}

inline float sound_element(wire::Dtype dtype, const std::byte* source, size_t index, float limit) {
  const float value = load_element(dtype, source, index);
  return is_sound(value, limit) ? value : 0.0f;
}

inline bool store(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
                  float limit) {
  PBOX_DCHECK(accumulator != nullptr || count == 0);
  for (size_t i = 0; i < count; ++i) accumulator[i] = load_element(dtype, source, i);
  return all_sound(dtype, source, count, limit);
}

inline bool add(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
                float limit) {
  PBOX_DCHECK(accumulator != nullptr || count == 0);
  for (size_t i = 0; i < count; ++i) accumulator[i] += load_element(dtype, source, i);
  return all_sound(dtype, source, count, limit);
}

inline bool store_sound(wire::Dtype dtype, float* accumulator, const std::byte* source,
                        size_t count, float limit) {
  PBOX_DCHECK(accumulator != nullptr || count == 0);
  for (size_t i = 0; i < count; ++i) accumulator[i] = sound_element(dtype, source, i, limit);
  return all_sound(dtype, source, count, limit);
}

inline bool add_sound(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
                      float limit) {
  PBOX_DCHECK(accumulator != nullptr || count == 0);
  for (size_t i = 0; i < count; ++i) accumulator[i] += sound_element(dtype, source, i, limit);
  return all_sound(dtype, source, count, limit);
}

inline void scale(float* values, float factor, size_t count) {
  PBOX_DCHECK(values != nullptr || count == 0);
  for (size_t i = 0; i < count; ++i) values[i] *= factor;
}

// Works forward, so that in place each byte is read before it is overwritten.
inline void narrow(wire::Dtype dtype, std::byte* destination, const float* source, size_t count) {
  PBOX_DCHECK((destination != nullptr && source != nullptr) || count == 0);
  if (dtype == wire::Dtype::kF32) {
    if (count != 0) std::memmove(destination, source, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, source + i, sizeof value);
    const uint16_t half = dtype == wire::Dtype::kF16 ? narrow_f16(value) : narrow_bf16(value);
    std::memcpy(destination + i * sizeof half, &half, sizeof half);
  }
}

inline bool all_finite(const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) return false;
  }
  return true;
}

template <typename Element>
double sum_squares_of(Element element, size_t count) {
  constexpr size_t kSums = 16;
  double sums[kSums] = {};
  for (size_t i = 0; i < count; ++i) {
    const double value = element(i);
    sums[i % kSums] += value * value;
  }
  double sum = 0;
  for (const double partial : sums) sum += partial;
  return sum;
}

inline double sum_squares(const float* values, size_t count) {
  return sum_squares_of([&](size_t i) { return static_cast<double>(values[i]); }, count);
}

inline double finite_squares(wire::Dtype dtype, const std::byte* source, size_t count) {
  return sum_squares_of(
      [&](size_t i) { return static_cast<double>(sound_element(dtype, source, i, FLT_MAX)); },
      count);
}

}  // namespace pbox::reduce::reference
