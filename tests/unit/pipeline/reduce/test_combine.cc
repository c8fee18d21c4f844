#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>
#include <type_traits>

#include "pipeline/reduce/combine.h"
#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;
using wire::Dtype;

namespace {

enum class Op { kSum, kMin, kMax };
constexpr Op kOps[] = {Op::kSum, Op::kMin, Op::kMax};

reduce::CombineFunction function_of(const reduce::Combiners& combiners, Op op, Dtype dtype) {
  const auto& row = op == Op::kSum ? combiners.sum : op == Op::kMin ? combiners.min : combiners.max;
  return row[static_cast<size_t>(dtype)];
}

// The definition, one element at a time.
template <typename T>
T of_two(Op op, T one, T other) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == Op::kSum) return one + other;
    if (std::isnan(one)) return one;
    if (std::isnan(other)) return other;
  } else if (op == Op::kSum) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<Unsigned>(static_cast<Unsigned>(one) + static_cast<Unsigned>(other)));
  }
  if (op == Op::kMin) return other < one ? other : one;
  return other > one ? other : one;
}

// Returns random bits, so that integers wrap around and floats are of every class.
std::vector<std::byte> random_bytes(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

template <typename T>
bool is_same(T one, T other) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(one) && std::isnan(other)) return true;  // which NaN is left open
  }
  using Bytes = std::array<std::byte, sizeof(T)>;
  return std::bit_cast<Bytes>(one) == std::bit_cast<Bytes>(other);
}

template <typename T>
void check_type(const reduce::Combiners& combiners, Dtype dtype) {
  for (const Op op : kOps) {
    const auto combine = function_of(combiners, op, dtype);
    if (combine == nullptr) continue;
    for (const size_t count : test::kCounts) {
      INFO(wire::to_string(dtype) << " op " << static_cast<int>(op) << " count " << count);
      const auto first = random_bytes(count * sizeof(T), 3 + count);
      const auto second = random_bytes(count * sizeof(T), 7 + count);
      test::Array<T> accumulator(count);
      test::Array<std::byte> source(count * sizeof(T), 5);
      if (count > 0) {
        std::memcpy(accumulator.data(), first.data(), first.size());
        std::memcpy(source.data(), second.data(), second.size());
      }
      combine(reinterpret_cast<std::byte*>(accumulator.data()), source.data(), count);
      bool are_same = true;
      for (size_t i = 0; i < count; ++i) {
        T one, other;
        std::memcpy(&one, first.data() + i * sizeof(T), sizeof(T));
        std::memcpy(&other, second.data() + i * sizeof(T), sizeof(T));
        are_same = are_same && is_same(accumulator[i], of_two(op, one, other));
      }
      CHECK(are_same);
    }
  }
}

}  // namespace

TEST_CASE("integers and doubles are combined as the definition says on every target") {
  for (const auto& target : reduce::supported_targets()) {
    INFO(target.name);
    const reduce::Combiners combiners = reduce::combiners_for(target.target);
    check_type<float>(combiners, Dtype::kF32);
    check_type<int32_t>(combiners, Dtype::kI32);
    check_type<int64_t>(combiners, Dtype::kI64);
    check_type<uint8_t>(combiners, Dtype::kU8);
    check_type<int8_t>(combiners, Dtype::kI8);
    check_type<double>(combiners, Dtype::kF64);
  }
}

TEST_CASE("sums that have a kernel of their own are left to it, and no others") {
  const reduce::Combiners combiners = reduce::combiners_for(reduce::kernels().target);
  for (uint32_t dtype = 0; dtype < wire::kCollectiveDtypeCount; ++dtype) {
    CHECK((combiners.sum[dtype] == nullptr) == (dtype < wire::kDtypeCount));
    CHECK(combiners.min[dtype] != nullptr);
    CHECK(combiners.max[dtype] != nullptr);
  }
}

TEST_CASE("halves are compared in f32 on every target") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Combiners combiners = reduce::combiners_for(target.target);
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
      for (const Op op : {Op::kMin, Op::kMax}) {
        for (const size_t count : test::kCounts) {
          INFO(target.name << " " << wire::to_string(dtype) << " count " << count);
          test::Array<std::byte> first(count * 2, 3), second(count * 2, 1);
          test::fill_payload(dtype, first.data(), count, 11 + count, true);
          test::fill_payload(dtype, second.data(), count, 13 + count, true);
          test::Array<float> accumulator(count);
          reduce::reference::store(dtype, accumulator.data(), first.data(), count, FLT_MAX);
          function_of(combiners, op, dtype)(reinterpret_cast<std::byte*>(accumulator.data()),
                                            second.data(), count);
          bool are_same = true;
          for (size_t i = 0; i < count; ++i) {
            const float one = reduce::reference::load_element(dtype, first.data(), i);
            const float other = reduce::reference::load_element(dtype, second.data(), i);
            are_same = are_same && is_same(accumulator[i], of_two(op, one, other));
          }
          CHECK(are_same);
        }
      }
    }
  }
}

TEST_CASE("division rounds to nearest, as the processor's does") {
  for (const size_t count : test::kCounts) {
    const std::vector<float> values = test::floats(count, 3 + count, true);
    test::Array<float> singles(count);
    test::Array<double> doubles(count);
    for (size_t i = 0; i < count; ++i) doubles[i] = static_cast<double>(singles[i] = values[i]);
    reduce::divide(Dtype::kBf16, reinterpret_cast<std::byte*>(singles.data()), 3, count);
    reduce::divide(Dtype::kF64, reinterpret_cast<std::byte*>(doubles.data()), 3, count);
    bool are_same = true;
    for (size_t i = 0; i < count; ++i) {
      are_same = are_same && is_same(singles[i], values[i] / 3.0f) &&
                 is_same(doubles[i], static_cast<double>(values[i]) / 3.0);
    }
    CHECK(are_same);
  }
}
