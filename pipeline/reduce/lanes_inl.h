// Loads one vector of f32 from a payload and stores one into it. Shared by the kernels of one
// Highway target. Compiled once per target, so a toggled guard replaces #pragma once.
#if defined(PBOX_PIPELINE_REDUCE_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef PBOX_PIPELINE_REDUCE_LANES_INL
#undef PBOX_PIPELINE_REDUCE_LANES_INL
#else
#define PBOX_PIPELINE_REDUCE_LANES_INL
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "nic/wire/dtype.h"
#include "pipeline/reduce/reference.h"

HWY_BEFORE_NAMESPACE();
namespace pbox::reduce::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using wire::Dtype;

// Targets without conversion instructions convert lane by lane, as the reference does. So does
// SSE2, because Highway 1.2's conversion for it turns infinities and NaNs into numbers.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SSE2
inline constexpr bool kConvertsF16 = false;
#else
inline constexpr bool kConvertsF16 = true;
#endif

template <class D>
HWY_INLINE hn::Vec<D> load_f16_by_lane(D d, const std::byte* source) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    lanes[i] = reference::load_element(Dtype::kF16, source, i);
  }
  return hn::Load(d, lanes);
}

template <class D>
HWY_INLINE void store_f16_by_lane(D d, hn::Vec<D> values, std::byte* destination) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(values, d, lanes);
  reference::narrow(Dtype::kF16, destination, lanes, hn::Lanes(d));
}

// Loads Lanes(d) elements from a payload of any alignment, and widens them.
template <Dtype dtype, class D>
HWY_INLINE hn::Vec<D> load_widened(D d, const std::byte* source) {
  if constexpr (dtype == Dtype::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(source));
  } else if constexpr (dtype == Dtype::kBf16) {
    const hn::RebindToUnsigned<D> d_bits;
    const hn::Rebind<uint16_t, D> d_half;
    const auto half = hn::LoadU(d_half, reinterpret_cast<const uint16_t*>(source));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d_bits, half)));
  } else if constexpr (kConvertsF16) {
    const hn::Rebind<hwy::float16_t, D> d_half;
    return hn::PromoteTo(d, hn::LoadU(d_half, reinterpret_cast<const hwy::float16_t*>(source)));
  } else {
    return load_f16_by_lane(d, source);
  }
}

// Rounds to nearest even in integers: Highway's own bf16 demotion truncates, and the AVX-512 BF16
// instruction flushes denormals.
template <class D>
HWY_INLINE void store_bf16([[maybe_unused]] D d, hn::Vec<D> values, std::byte* destination) {
  const hn::RebindToUnsigned<D> d_bits;
  const hn::RebindToSigned<D> d_signed;
  const hn::Rebind<uint16_t, D> d_half;
  const auto bits = hn::BitCast(d_bits, values);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto to_even = hn::Add(hn::Set(d_bits, 0x7fffu), hn::And(upper, hn::Set(d_bits, 1u)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, to_even));
  const auto quiet = hn::Or(upper, hn::Set(d_bits, 0x40u));
  const auto is_nan = hn::RebindMask(d_bits, hn::IsNaN(values));
  const auto result = hn::BitCast(d_signed, hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d_half, result), d_half, reinterpret_cast<uint16_t*>(destination));
}

// Narrows Lanes(d) elements and stores them to a payload of any alignment. Not for kF32.
template <Dtype dtype, class D>
HWY_INLINE void store_narrowed(D d, hn::Vec<D> values, std::byte* destination) {
  if constexpr (dtype == Dtype::kBf16) {
    store_bf16(d, values, destination);
  } else if constexpr (kConvertsF16) {
    const hn::Rebind<hwy::float16_t, D> d_half;
    hn::StoreU(hn::DemoteTo(d_half, values), d_half,
               reinterpret_cast<hwy::float16_t*>(destination));
  } else {
    store_f16_by_lane(d, values, destination);
  }
}

}  // namespace pbox::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // guard per target
