#include "pipeline/reduce/reduce.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "base/check.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pipeline/reduce/reduce.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "pipeline/reduce/lanes_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::reduce::HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;

// The vectors of the kernels. Memory limits sums of f32, and vectors of 256 bits are faster there
// than vectors of 512. Conversion limits sums of halves (f16, bf16) as long as they are in cache.
// The loops take one vector per iteration and do not prefetch: unrolling and prefetching cost more
// on fragments than they gain on long arrays. perf/cores.md has the measurements.
template <Dtype dtype>
using PayloadTag = std::conditional_t<dtype == Dtype::kF32, hn::CappedTag<float, 8>, FloatTag>;

// Room for a copy of the last elements of an array, fewer than one vector, because a vector access
// past the end of the array would touch other memory.
struct Tail {
  HWY_ALIGN float values[hn::MaxLanes(FloatTag())] = {};
  HWY_ALIGN std::byte payload[hn::MaxLanes(FloatTag()) * sizeof(float)] = {};
};

// are_sound() returns whether all values are sound, at the cost of two operations per vector:
// magnitudes of floats compare like their bits, and infinities and NaNs have the largest.
// `largest`, which begins at zero, is the maximum of the values' bits shifted left by one, which
// drops their signs. It is not in a class, because SVE vectors cannot be members.
template <class D>
using Bits = hn::RebindToUnsigned<D>;

template <class DBits>
HWY_INLINE bool are_sound(DBits d, hn::Vec<DBits> largest, float limit) {
  return hn::AllTrue(d, hn::Lt(largest, hn::Set(d, 2 * std::bit_cast<uint32_t>(limit) + 1)));
}

// Returns the accumulator's new values. `kZeroes`: arrived values that are not sound count as 0.
template <Dtype dtype, bool kAdds, bool kZeroes, class D>
HWY_INLINE hn::Vec<D> arrived(D d, const float* accumulator, const std::byte* source,
                              [[maybe_unused]] hn::Vec<D> limits, hn::Vec<Bits<D>>& largest) {
  auto values = load_widened<dtype>(d, source);
  const auto bits = hn::BitCast(Bits<D>(), values);
  largest = hn::Max(largest, hn::Add(bits, bits));  // the doubling drops the sign bit
  if constexpr (kZeroes) values = hn::IfThenElseZero(hn::Le(hn::Abs(values), limits), values);
  if constexpr (kAdds) {
    return hn::Add(hn::LoadU(d, accumulator), values);
  } else {
    return values;
  }
}

template <Dtype dtype, bool kAdds, bool kZeroes>
bool accumulate(float* accumulator, const std::byte* source, size_t count, float limit) {
  constexpr size_t kBytes = wire::dtype_bytes(dtype);
  PBOX_DCHECK(count == 0 || (accumulator != nullptr && source != nullptr));
  PBOX_DCHECK(limit >= 0 && limit <= FLT_MAX);
  const PayloadTag<dtype> d;
  const Bits<PayloadTag<dtype>> d_bits;
  const size_t lanes = hn::Lanes(d);
  const auto limits = hn::Set(d, limit);
  auto largest = hn::Zero(d_bits);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(
        arrived<dtype, kAdds, kZeroes>(d, accumulator + i, source + i * kBytes, limits, largest), d,
        accumulator + i);
  }
  if (i == count) return are_sound(d_bits, largest, limit);
  PBOX_DCHECK(count - i < lanes && (count - i) * kBytes <= sizeof(Tail::payload));
  Tail tail;
  std::memcpy(tail.payload, source + i * kBytes, (count - i) * kBytes);
  std::memcpy(tail.values, accumulator + i, (count - i) * sizeof(float));
  hn::Store(arrived<dtype, kAdds, kZeroes>(d, tail.values, tail.payload, limits, largest), d,
            tail.values);
  std::memcpy(accumulator + i, tail.values, (count - i) * sizeof(float));
  return are_sound(d_bits, largest, limit);
}

// Also works in place: an iteration never overwrites an element that is still to be read.
template <Dtype dtype>
void narrow_to(std::byte* destination, const float* source, size_t count) {
  constexpr size_t kBytes = wire::dtype_bytes(dtype);
  PBOX_DCHECK(count == 0 || (destination != nullptr && source != nullptr));
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store_narrowed<dtype>(d, hn::LoadU(d, source + i), destination + i * kBytes);
  }
  if (i == count) return;
  PBOX_DCHECK(count - i < lanes && (count - i) * sizeof(float) <= sizeof(Tail::values));
  Tail tail;
  std::memcpy(tail.values, source + i, (count - i) * sizeof(float));
  store_narrowed<dtype>(d, hn::Load(d, tail.values), tail.payload);
  std::memcpy(destination + i * kBytes, tail.payload, (count - i) * kBytes);
}

void copy_f32(std::byte* destination, const float* source, size_t count) {
  if (destination == reinterpret_cast<const std::byte*>(source) || count == 0) return;
  std::memmove(destination, source, count * sizeof(float));
}

void scale_all(float* values, float factor, size_t count) {
  PBOX_DCHECK(count == 0 || values != nullptr);
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), factors), d, values + i);
  }
  for (; i < count; ++i) values[i] *= factor;
}

// Only infinities and NaNs have all bits of the exponent set, so the largest exponent decides.
bool none_infinite_or_nan(const float* values, size_t count) {
  constexpr int32_t kExponentBits = 0x7f800000;
  const hn::ScalableTag<int32_t> d;
  const FloatTag d_float;
  const size_t lanes = hn::Lanes(d);
  const auto exponent_mask = hn::Set(d, kExponentBits);
  const auto exponent = [&](const float* at) HWY_ATTR {
    return hn::And(hn::BitCast(d, hn::LoadU(d_float, at)), exponent_mask);
  };
  auto largest0 = hn::Zero(d);
  auto largest1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    largest0 = hn::Max(largest0, exponent(values + i));
    largest1 = hn::Max(largest1, exponent(values + i + lanes));
  }
  const auto largest = hn::Max(largest0, largest1);
  return hn::AllFalse(d, hn::Eq(largest, exponent_mask)) &&
         reference::all_finite(values + i, count - i);
}

// kSquareSums partial sums of squares, in f64. With SVE they lie in memory, because SVE vectors
// cannot be members of a class.
using SquareTag = hn::CappedTag<double, kSquareSums>;
#if HWY_HAVE_SCALABLE
struct SquareSums {
  HWY_ALIGN double values[kSquareSums] = {};
};
#else
struct SquareSums {
  HWY_ATTR SquareSums() {  // the implicit one would not be compiled for the target
    for (auto& each : values) each = hn::Zero(SquareTag());
  }
  hn::Vec<SquareTag> values[kSquareSums / hn::MaxLanes(SquareTag())];
};
#endif

// Adds the squares of kSquareSums elements. The square of an f32 is exact in f64, so that a fused
// addition gives the same bits as two operations. `kSkips`: infinities and NaNs count as 0.
template <Dtype dtype, bool kSkips>
HWY_INLINE void add_squares(const std::byte* block, SquareSums& sums) {
  const SquareTag d;
  const hn::Rebind<float, SquareTag> d_float;
  const size_t lanes = hn::Lanes(d);
  for (size_t at = 0; at < kSquareSums; at += lanes) {
    auto values = load_widened<dtype>(d_float, block + at * wire::dtype_bytes(dtype));
    if constexpr (kSkips) values = hn::IfThenElseZero(hn::IsFinite(values), values);
    const auto wide = hn::PromoteTo(d, values);
#if HWY_HAVE_SCALABLE
    hn::Store(hn::MulAdd(wide, wide, hn::Load(d, sums.values + at)), d, sums.values + at);
#else
    sums.values[at / lanes] = hn::MulAdd(wide, wide, sums.values[at / lanes]);
#endif
  }
}

HWY_INLINE double total(const SquareSums& sums) {
#if HWY_HAVE_SCALABLE
  const double* const values = sums.values;
#else
  const SquareTag d;
  HWY_ALIGN double values[kSquareSums];
  for (size_t at = 0; at < kSquareSums; at += hn::Lanes(d)) {
    hn::Store(sums.values[at / hn::Lanes(d)], d, values + at);
  }
#endif
  double sum = 0;
  for (size_t i = 0; i < kSquareSums; ++i) sum += values[i];
  return sum;
}

template <Dtype dtype, bool kSkips>
double payload_squares(const std::byte* source, size_t count) {
  constexpr size_t kBytes = wire::dtype_bytes(dtype);
  PBOX_DCHECK(count == 0 || source != nullptr);
  SquareSums sums;
  size_t i = 0;
  for (; i + kSquareSums <= count; i += kSquareSums) {
    add_squares<dtype, kSkips>(source + i * kBytes, sums);
  }
  std::byte tail[kSquareSums * kBytes] = {};
  if (i < count) std::memcpy(tail, source + i * kBytes, (count - i) * kBytes);
  add_squares<dtype, kSkips>(tail, sums);
  return total(sums);
}

double squares_of(const float* values, size_t count) {
  return payload_squares<Dtype::kF32, false>(reinterpret_cast<const std::byte*>(values), count);
}

// Returns the sum of the squares of a payload, in which infinities and NaNs count as 0. If the
// first sum is not finite, there are some, and all elements are added once more without them.
template <Dtype dtype>
double finite_squares_of(const std::byte* source, size_t count) {
  const double sum = payload_squares<dtype, false>(source, count);
  return std::isfinite(sum) ? sum : payload_squares<dtype, true>(source, count);
}

Kernels table() {
  constexpr Dtype kF32 = Dtype::kF32;
  constexpr Dtype kF16 = Dtype::kF16;
  constexpr Dtype kBf16 = Dtype::kBf16;
  return {.target = HWY_TARGET,
          .store = {accumulate<kF32, false, false>, accumulate<kF16, false, false>,
                    accumulate<kBf16, false, false>},
          .add = {accumulate<kF32, true, false>, accumulate<kF16, true, false>,
                  accumulate<kBf16, true, false>},
          .store_sound = {accumulate<kF32, false, true>, accumulate<kF16, false, true>,
                          accumulate<kBf16, false, true>},
          .add_sound = {accumulate<kF32, true, true>, accumulate<kF16, true, true>,
                        accumulate<kBf16, true, true>},
          .finite_squares = {finite_squares_of<kF32>, finite_squares_of<kF16>,
                             finite_squares_of<kBf16>},
          .narrow = {copy_f32, narrow_to<kF16>, narrow_to<kBf16>},
          .scale = scale_all,
          .all_finite = none_infinite_or_nan,
          .sum_squares = squares_of};
}

}  // namespace pbox::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::reduce {

HWY_EXPORT(table);

const Kernels& kernels() {
  static const Kernels chosen = kernels_for(supported_targets().front().target);
  return chosen;
}

std::vector<TargetName> supported_targets() {
  std::vector<TargetName> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.push_back({target, hwy::TargetName(target)});
  }
  return names;
}

Kernels kernels_for(int64_t target) {
  if constexpr (std::size(HWY_DISPATCH_TABLE(table)) == 1) {  // built for one target only
    return HWY_DISPATCH_TABLE(table)[0]();
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    return HWY_DISPATCH_TABLE(table)[chosen.GetIndex()]();
  }
}

bool store(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
           float limit) {
  PBOX_DCHECK(static_cast<size_t>(dtype) < wire::kDtypeCount);
  return kernels().store[static_cast<size_t>(dtype)](accumulator, source, count, limit);
}

bool add(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
         float limit) {
  PBOX_DCHECK(static_cast<size_t>(dtype) < wire::kDtypeCount);
  return kernels().add[static_cast<size_t>(dtype)](accumulator, source, count, limit);
}

double finite_squares(wire::Dtype dtype, const std::byte* source, size_t count) {
  PBOX_DCHECK(static_cast<size_t>(dtype) < wire::kDtypeCount);
  return kernels().finite_squares[static_cast<size_t>(dtype)](source, count);
}

void scale(float* values, float factor, size_t count) {
  kernels().scale(values, factor, count);
}

void narrow(wire::Dtype dtype, std::byte* destination, const float* source, size_t count) {
  PBOX_DCHECK(static_cast<size_t>(dtype) < wire::kDtypeCount);
  kernels().narrow[static_cast<size_t>(dtype)](destination, source, count);
}

bool all_finite(const float* values, size_t count) {
  return kernels().all_finite(values, count);
}

double sum_squares(const float* values, size_t count) {
  return kernels().sum_squares(values, count);
}

}  // namespace pbox::reduce
#endif  // HWY_ONCE
