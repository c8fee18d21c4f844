#include "pipeline/reduce/combine.h"

#include <cstring>
#include <iterator>
#include <type_traits>

#include "base/check.h"
#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pipeline/reduce/combine.cc"
// clang-format off: foreach_target.h must come first
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "pipeline/reduce/lanes_inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace pbox::reduce::HWY_NAMESPACE {

enum class Op { kSum, kMin, kMax };

// NaNs win over numbers, whichever of the two arrived first.
template <Op op, class D, class V>
HWY_INLINE V of_two([[maybe_unused]] D d, V one, V other) {
  if constexpr (op == Op::kSum) {
    return hn::Add(one, other);
  } else if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
    const auto wins = op == Op::kMin ? hn::Lt(other, one) : hn::Gt(other, one);
    const auto number = hn::IfThenElse(hn::Or(wins, hn::IsNaN(other)), other, one);
    return hn::IfThenElse(hn::IsNaN(one), one, number);
  } else {
    return op == Op::kMin ? hn::Min(one, other) : hn::Max(one, other);
  }
}

// Combines elements of type T with a source of the same type.
template <typename T, Op op>
void combine_same(std::byte* accumulator, const std::byte* source, size_t count) {
  PBOX_DCHECK(count == 0 || (accumulator != nullptr && source != nullptr));
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  auto* const values = reinterpret_cast<T*>(accumulator);
  const auto* const arrived = reinterpret_cast<const T*>(source);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(of_two<op>(d, hn::LoadU(d, values + i), hn::LoadU(d, arrived + i)), d, values + i);
  }
  // The last elements are copied, because a vector access past the end would touch other memory.
  HWY_ALIGN T one[hn::MaxLanes(hn::ScalableTag<T>())] = {};
  HWY_ALIGN T other[hn::MaxLanes(hn::ScalableTag<T>())] = {};
  const size_t bytes = (count - i) * sizeof(T);
  if (bytes == 0) return;
  PBOX_DCHECK(bytes <= sizeof(one) && bytes <= sizeof(other));
  std::memcpy(one, accumulator + i * sizeof(T), bytes);
  std::memcpy(other, source + i * sizeof(T), bytes);
  hn::Store(of_two<op>(d, hn::Load(d, one), hn::Load(d, other)), d, one);
  std::memcpy(accumulator + i * sizeof(T), one, bytes);
}

// Widens the payload's f16 or bf16 elements, and combines them in f32.
template <Dtype dtype, Op op>
void combine_widened(std::byte* accumulator, const std::byte* source, size_t count) {
  constexpr size_t kBytes = wire::dtype_bytes(dtype);
  PBOX_DCHECK(count == 0 || (accumulator != nullptr && source != nullptr));
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto* const values = reinterpret_cast<float*>(accumulator);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto arrived = load_widened<dtype>(d, source + i * kBytes);
    hn::StoreU(of_two<op>(d, hn::LoadU(d, values + i), arrived), d, values + i);
  }
  if (i == count) return;
  PBOX_DCHECK(count - i < lanes);
  HWY_ALIGN float one[hn::MaxLanes(hn::ScalableTag<float>())] = {};
  HWY_ALIGN std::byte other[hn::MaxLanes(hn::ScalableTag<float>()) * sizeof(float)] = {};
  std::memcpy(one, values + i, (count - i) * sizeof(float));
  std::memcpy(other, source + i * kBytes, (count - i) * kBytes);
  hn::Store(of_two<op>(d, hn::Load(d, one), load_widened<dtype>(d, other)), d, one);
  std::memcpy(values + i, one, (count - i) * sizeof(float));
}

template <Op op>
std::array<CombineFunction, wire::kCollectiveDtypeCount> row() {
  return {combine_same<float, op>,           combine_widened<Dtype::kF16, op>,
          combine_widened<Dtype::kBf16, op>, combine_same<int32_t, op>,
          combine_same<int64_t, op>,         combine_same<uint8_t, op>,
          combine_same<int8_t, op>,          combine_same<double, op>};
}

Combiners combiner_table() {
  Combiners table{.sum = row<Op::kSum>(), .min = row<Op::kMin>(), .max = row<Op::kMax>()};
  for (size_t dtype = 0; dtype < wire::kDtypeCount; ++dtype) table.sum[dtype] = nullptr;
  return table;
}

template <typename T>
void divide_all(std::byte* bytes, uint32_t divisor, size_t count) {
  PBOX_DCHECK(divisor > 0 && (count == 0 || bytes != nullptr));
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto divisors = hn::Set(d, static_cast<T>(divisor));
  auto* const values = reinterpret_cast<T*>(bytes);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Div(hn::LoadU(d, values + i), divisors), d, values + i);
  }
  for (; i < count; ++i) values[i] /= static_cast<T>(divisor);
}

void divide_values(wire::Dtype dtype, std::byte* values, uint32_t divisor, size_t count) {
  if (dtype == Dtype::kF64) {
    divide_all<double>(values, divisor, count);
  } else {
    divide_all<float>(values, divisor, count);
  }
}

}  // namespace pbox::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::reduce {

HWY_EXPORT(combiner_table);
HWY_EXPORT(divide_values);

Combiners combiners_for(int64_t target) {
  if constexpr (std::size(HWY_DISPATCH_TABLE(combiner_table)) == 1) {  // built for one target only
    return HWY_DISPATCH_TABLE(combiner_table)[0]();
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    return HWY_DISPATCH_TABLE(combiner_table)[chosen.GetIndex()]();
  }
}

void divide(wire::Dtype dtype, std::byte* values, uint32_t divisor, size_t count) {
  PBOX_DCHECK(wire::is_floating_point(dtype) && divisor > 0);
  HWY_DYNAMIC_DISPATCH(divide_values)(dtype, values, divisor, count);
}

}  // namespace pbox::reduce
#endif  // HWY_ONCE
