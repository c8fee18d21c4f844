#include "nic/quantize/quantize.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "nic/quantize/reference.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nic/quantize/quantize.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::quantize::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using reference::BlockKind;
using wire::Dtype;

// Vectors have at most 16 elements, because half a block of kQ4 has 16.
using FloatTag = hn::CappedTag<float, 16>;
using IntegerTag = hn::RebindToSigned<FloatTag>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Integers = hn::Vec<IntegerTag>;

template <Dtype dtype>
inline constexpr uint32_t kElements = wire::block_layout(dtype).elements;
template <Dtype dtype>
inline constexpr uint32_t kHalf = kElements<dtype> / 2;

HWY_INLINE Floats corrected(const float* values, const float* residue) {
  const FloatTag d;
  return hn::Add(hn::LoadU(d, values), hn::LoadU(d, residue));
}

// Returns the bits of the largest magnitude of a block.
template <Dtype dtype>
HWY_INLINE uint32_t largest_of(const float* values, const float* residue) {
  const IntegerTag d;
  const auto magnitude = hn::Set(d, 0x7fffffff);
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < kElements<dtype>; i += hn::Lanes(d)) {
    const auto bits = hn::BitCast(d, corrected(values + i, residue + i));
    largest = hn::Max(largest, hn::And(bits, magnitude));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, largest)));
}

// Returns random_bits() of successive counters, from `first` on.
HWY_INLINE hn::Vec<BitsTag> random_vector(RoundingKey key, uint32_t first) {
  const BitsTag d;
  auto bits = hn::Mul(hn::Iota(d, first), hn::Set(d, 0x9e3779b1u));
  bits = hn::Add(bits, hn::Set(d, key.low));
  bits = hn::Xor(bits, hn::ShiftRight<16>(bits));
  bits = hn::Mul(bits, hn::Set(d, 0x7feb352du));
  bits = hn::Xor(bits, hn::ShiftRight<15>(bits));
  bits = hn::Add(bits, hn::Set(d, key.high));
  bits = hn::Mul(bits, hn::Set(d, 0x846ca68bu));
  return hn::Xor(bits, hn::ShiftRight<16>(bits));
}

// Rounds one vector of a block to integers, and keeps what rounding takes in the residue.
template <Dtype dtype>
HWY_INLINE Integers round_vector(const float* values, float* residue, const reference::Scale& scale,
                                 hn::Vec<BitsTag> random) {
  const FloatTag d;
  const auto most = hn::Set(d, reference::integer_max(dtype));
  const auto value = corrected(values, residue);
  const auto draw =
      hn::Mul(hn::ConvertTo(d, hn::BitCast(IntegerTag(), random)), hn::Set(d, 0x1.0p-16f));
  const auto exact =
      hn::Min(hn::Max(hn::Mul(value, hn::Set(d, scale.inverse)), hn::Neg(most)), most);
  const auto integer = hn::Floor(hn::Add(exact, draw));
  hn::StoreU(hn::Sub(value, hn::Mul(hn::Set(d, scale.value), integer)), d, residue);
  return hn::ConvertTo(IntegerTag(), integer);
}

// Writes the integers of elements [i, i + lanes) and [i + half, i + half + lanes) of a block.
template <Dtype dtype>
HWY_INLINE void store_integers(Integers first, Integers second, std::byte* integers, size_t i) {
  const IntegerTag d;
  PBOX_DCHECK(i < kHalf<dtype>);
  if constexpr (dtype == Dtype::kQ8) {
    const hn::Rebind<int8_t, IntegerTag> d_bytes;
    auto* to = reinterpret_cast<int8_t*>(integers);
    hn::StoreU(hn::DemoteTo(d_bytes, first), d_bytes, to + i);
    hn::StoreU(hn::DemoteTo(d_bytes, second), d_bytes, to + i + kHalf<dtype>);
  } else {
    const hn::Rebind<uint8_t, IntegerTag> d_bytes;
    const auto low = hn::And(first, hn::Set(d, 0x0f));
    const auto high = hn::And(hn::ShiftLeft<4>(second), hn::Set(d, 0xf0));
    hn::StoreU(hn::DemoteTo(d_bytes, hn::Or(low, high)), d_bytes,
               reinterpret_cast<uint8_t*>(integers) + i);
  }
}

template <Dtype dtype>
HWY_INLINE void encode_full_block(std::byte* to, const float* values, float* residue,
                                  RoundingKey key, uint32_t block) {
  constexpr wire::BlockLayout kLayout = wire::block_layout(dtype);
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  PBOX_DCHECK(kHalf<dtype> % lanes == 0);
  const reference::Scale scale = reference::scale_of(dtype, largest_of<dtype>(values, residue));
  reference::put_scale(dtype, to, scale.coded);
  std::byte* const integers = to + kLayout.scale_bytes;
  if (scale.kind != BlockKind::kScaled) [[unlikely]] {
    std::memset(integers, 0, kLayout.bytes - kLayout.scale_bytes);
    if (scale.kind == BlockKind::kNan) return;
    for (size_t i = 0; i < kElements<dtype>; i += lanes) {
      hn::StoreU(corrected(values + i, residue + i), d, residue + i);
    }
    return;
  }
  for (size_t i = 0; i < kHalf<dtype>; i += lanes) {
    const size_t other = i + kHalf<dtype>;
    const auto random = random_vector(key, block * kHalf<dtype> + static_cast<uint32_t>(i));
    const auto low = hn::And(random, hn::Set(BitsTag(), 0xffffu));
    const auto first = round_vector<dtype>(values + i, residue + i, scale, low);
    const auto second =
        round_vector<dtype>(values + other, residue + other, scale, hn::ShiftRight<16>(random));
    store_integers<dtype>(first, second, integers, i);
  }
}

template <Dtype dtype>
void encode_blocks(std::byte* blocks, const float* values, float* residue, size_t count,
                   RoundingKey key) {
  constexpr wire::BlockLayout kLayout = wire::block_layout(dtype);
  PBOX_DCHECK(count == 0 || (blocks != nullptr && values != nullptr && residue != nullptr));
  uint32_t block = 0;
  for (; count >= kLayout.elements; ++block, count -= kLayout.elements) {
    encode_full_block<dtype>(blocks, values, residue, key, block);
    blocks += kLayout.bytes;
    values += kLayout.elements;
    residue += kLayout.elements;
  }
  PBOX_DCHECK(count < kLayout.elements);
  if (count == 0) return;
  reference::encode_block(dtype, blocks, values, residue, static_cast<uint32_t>(count), key, block);
}

// Loads one vector of integers of a block from element `i` on, and one from half a block later.
template <Dtype dtype>
HWY_INLINE void load_integers(const std::byte* integers, size_t i, Integers& first,
                              Integers& second) {
  const IntegerTag d;
  PBOX_DCHECK(i < kHalf<dtype>);
  if constexpr (dtype == Dtype::kQ8) {
    const hn::Rebind<int8_t, IntegerTag> d_bytes;
    const auto* from = reinterpret_cast<const int8_t*>(integers);
    first = hn::PromoteTo(d, hn::LoadU(d_bytes, from + i));
    second = hn::PromoteTo(d, hn::LoadU(d_bytes, from + i + kHalf<dtype>));
  } else {
    const hn::Rebind<uint8_t, IntegerTag> d_bytes;
    const auto pairs =
        hn::PromoteTo(d, hn::LoadU(d_bytes, reinterpret_cast<const uint8_t*>(integers) + i));
    first = hn::ShiftRight<28>(hn::ShiftLeft<28>(pairs));  // the arithmetic shift extends the sign
    second = hn::ShiftRight<28>(hn::ShiftLeft<24>(pairs));
  }
}

// Stores or adds one vector of elements. `largest`: the bits of the largest magnitude so far,
// shifted left by one.
template <bool kAdds, bool kZeroes>
HWY_INLINE void arrive(float* accumulator, Floats values, Floats limits,
                       hn::Vec<BitsTag>& largest) {
  const FloatTag d;
  const auto bits = hn::BitCast(BitsTag(), values);
  largest = hn::Max(largest, hn::Add(bits, bits));  // the doubling drops the sign bit
  if constexpr (kZeroes) values = hn::IfThenElseZero(hn::Le(hn::Abs(values), limits), values);
  if constexpr (kAdds) values = hn::Add(hn::LoadU(d, accumulator), values);
  hn::StoreU(values, d, accumulator);
}

template <Dtype dtype, bool kAdds, bool kZeroes>
bool accumulate(float* accumulator, const std::byte* blocks, size_t count, float limit) {
  constexpr wire::BlockLayout kLayout = wire::block_layout(dtype);
  PBOX_DCHECK(count == 0 || (accumulator != nullptr && blocks != nullptr));
  PBOX_DCHECK(limit >= 0 && limit <= FLT_MAX);
  const FloatTag d;
  const BitsTag d_bits;
  const auto limits = hn::Set(d, limit);
  auto largest = hn::Zero(d_bits);
  for (; count >= kLayout.elements; count -= kLayout.elements) {
    const auto scale = hn::Set(d, reference::get_scale(dtype, blocks));
    for (size_t i = 0; i < kHalf<dtype>; i += hn::Lanes(d)) {
      Integers first, second;
      load_integers<dtype>(blocks + kLayout.scale_bytes, i, first, second);
      arrive<kAdds, kZeroes>(accumulator + i, hn::Mul(scale, hn::ConvertTo(d, first)), limits,
                             largest);
      arrive<kAdds, kZeroes>(accumulator + i + kHalf<dtype>,
                             hn::Mul(scale, hn::ConvertTo(d, second)), limits, largest);
    }
    accumulator += kLayout.elements;
    blocks += kLayout.bytes;
  }
  const auto bound = hn::Set(d_bits, 2 * std::bit_cast<uint32_t>(limit) + 1);
  const bool are_sound = hn::AllTrue(d_bits, hn::Lt(largest, bound));
  PBOX_DCHECK(count < kLayout.elements);
  if (count == 0) return are_sound;
  return reference::accumulate(dtype, accumulator, blocks, count, limit, kAdds, kZeroes) &&
         are_sound;
}

Kernels table() {
  constexpr Dtype kQ8 = Dtype::kQ8;
  constexpr Dtype kQ4 = Dtype::kQ4;
  return {.target = HWY_TARGET,
          .encode = {encode_blocks<kQ8>, encode_blocks<kQ4>},
          .store = {accumulate<kQ8, false, false>, accumulate<kQ4, false, false>},
          .add = {accumulate<kQ8, true, false>, accumulate<kQ4, true, false>},
          .store_sound = {accumulate<kQ8, false, true>, accumulate<kQ4, false, true>},
          .add_sound = {accumulate<kQ8, true, true>, accumulate<kQ4, true, true>}};
}

}  // namespace pbox::quantize::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::quantize {

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

double finite_squares(wire::Dtype dtype, const std::byte* blocks, size_t count) {
  PBOX_DCHECK(wire::is_in_blocks(dtype) && (count == 0 || blocks != nullptr));
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = reference::load_element(dtype, blocks, i);
    if (std::isfinite(value)) sum += double{value} * double{value};
  }
  return sum;
}

}  // namespace pbox::quantize
#endif  // HWY_ONCE
