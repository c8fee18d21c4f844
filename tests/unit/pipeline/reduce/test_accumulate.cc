#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

namespace {

// The sum of two NaNs may be either of them (IEEE 754-2019, 6.2.3), so such sums are made equal.
// Everything else is exact.
void make_sums_of_nans_equal(const std::vector<float>& before, const test::Array<float>& added,
                             std::vector<uint32_t>& left, std::vector<uint32_t>& right) {
  auto& widened = const_cast<test::Array<float>&>(added);
  for (size_t i = 0; i < before.size(); ++i) {
    const bool left_is_nan = std::isnan(std::bit_cast<float>(left[i]));
    const bool right_is_nan = std::isnan(std::bit_cast<float>(right[i]));
    if (std::isnan(before[i]) && std::isnan(widened[i]) && left_is_nan && right_is_nan) {
      left[i] = right[i];
    }
  }
}

template <typename Visit>
void for_each_case(Visit visit) {
  for (const auto& target : reduce::supported_targets()) {
    for (const wire::Dtype dtype : test::kDtypes) {
      for (const size_t count : test::kCounts) {
        for (const size_t misalignment : {0, 1, 2, 3, 4, 30, 40}) {
          INFO(target.name << " " << wire::to_string(dtype) << " count " << count
                           << " misalignment " << misalignment);
          visit(reduce::kernels_for(target.target), dtype, count, misalignment);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("store equals the reference on every target") {
  for_each_case([](const reduce::Kernels& kernels, wire::Dtype dtype, size_t count,
                   size_t misalignment) {
    test::Array<std::byte> source(count * wire::dtype_bytes(dtype), misalignment);
    test::fill_payload(dtype, source.data(), count, 17 + count, true);
    test::Array<float> expected(count), actual(count);
    const bool finite =
        reduce::reference::store(dtype, expected.data(), source.data(), count, FLT_MAX);
    CHECK(kernels.store[static_cast<size_t>(dtype)](actual.data(), source.data(), count, FLT_MAX) ==
          finite);
    CHECK(test::bits(actual.data(), count) == test::bits(expected.data(), count));
  });
}

TEST_CASE("add equals the reference on every target") {
  for_each_case([](const reduce::Kernels& kernels, wire::Dtype dtype, size_t count,
                   size_t misalignment) {
    test::Array<std::byte> source(count * wire::dtype_bytes(dtype), misalignment);
    test::fill_payload(dtype, source.data(), count, 29 + count, true);
    const std::vector<float> before = test::floats(count, 31 + count, true);
    test::Array<float> expected(count), actual(count), widened(count);
    for (size_t i = 0; i < count; ++i) expected[i] = actual[i] = before[i];
    reduce::reference::store(dtype, widened.data(), source.data(), count, FLT_MAX);
    const bool finite =
        reduce::reference::add(dtype, expected.data(), source.data(), count, FLT_MAX);
    CHECK(kernels.add[static_cast<size_t>(dtype)](actual.data(), source.data(), count, FLT_MAX) ==
          finite);
    auto expected_bits = test::bits(expected.data(), count);
    auto actual_bits = test::bits(actual.data(), count);
    make_sums_of_nans_equal(before, widened, expected_bits, actual_bits);
    CHECK(actual_bits == expected_bits);
  });
}

TEST_CASE("store and add widen every half-precision value as the reference does") {
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  const auto* source = reinterpret_cast<const std::byte*>(halves.data());
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const wire::Dtype dtype : {wire::Dtype::kF16, wire::Dtype::kBf16}) {
      INFO(target.name << " " << wire::to_string(dtype));
      test::Array<float> expected(halves.size()), stored(halves.size()), sum(halves.size());
      reduce::reference::store(dtype, expected.data(), source, halves.size(), FLT_MAX);
      kernels.store[static_cast<size_t>(dtype)](stored.data(), source, halves.size(), FLT_MAX);
      CHECK(test::bits(stored.data(), stored.size()) == test::bits(expected.data(), stored.size()));

      test::Array<float> expected_sum(halves.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = expected_sum[i] = 0x1.0p-20f;
      reduce::reference::add(dtype, expected_sum.data(), source, halves.size(), FLT_MAX);
      kernels.add[static_cast<size_t>(dtype)](sum.data(), source, halves.size(), FLT_MAX);
      CHECK(test::bits(sum.data(), sum.size()) == test::bits(expected_sum.data(), sum.size()));
    }
  }
}

TEST_CASE("store and add report an infinity or NaN wherever it lies, and no other value") {
  for_each_case(
      [](const reduce::Kernels& kernels, wire::Dtype dtype, size_t count, size_t misalignment) {
        const auto type = static_cast<size_t>(dtype);
        const size_t bytes = wire::dtype_bytes(dtype);
        test::Array<std::byte> source(count * bytes, misalignment);
        test::Array<float> accumulator(count);
        // The largest finite values of either sign, then one that is not finite.
        const uint32_t largest[] = {0x7f7fffff, 0x7bff, 0x7f7f};
        const uint32_t infinity[] = {0x7f800000, 0x7c00, 0x7f80};
        const auto set = [&](size_t index, uint32_t bits, bool negative) {
          bits |= negative ? 1u << (8 * bytes - 1) : 0;
          std::memcpy(source.data() + index * bytes, &bits, bytes);
        };
        for (size_t i = 0; i < count; ++i) set(i, largest[type], i % 2 != 0);
        for (size_t i = 0; i < count; ++i) accumulator[i] = std::numeric_limits<float>::infinity();
        CHECK(kernels.store[type](accumulator.data(), source.data(), count, FLT_MAX));
        CHECK(kernels.add[type](accumulator.data(), source.data(), count, FLT_MAX));
        for (size_t i = 0; i < count; i += 1 + i / 16) {
          set(i, infinity[type] + (i % 3 == 0 ? 1 : 0), i % 5 == 0);
          REQUIRE_FALSE(kernels.store[type](accumulator.data(), source.data(), count, FLT_MAX));
          REQUIRE_FALSE(kernels.add[type](accumulator.data(), source.data(), count, FLT_MAX));
          set(i, largest[type], i % 2 != 0);
        }
      });
}

TEST_CASE("store and add do not touch elements after the last") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const size_t count : test::kCounts) {
      INFO(target.name << " count " << count);
      test::Array<float> source(count), accumulator(count + 16);
      for (size_t i = 0; i < count; ++i) source[i] = 1.0f;
      for (size_t i = 0; i < count + 16; ++i) accumulator[i] = 7.0f;
      kernels.store[0](accumulator.data(), reinterpret_cast<std::byte*>(source.data()), count,
                       FLT_MAX);
      kernels.add[0](accumulator.data(), reinterpret_cast<std::byte*>(source.data()), count,
                     FLT_MAX);
      for (size_t i = 0; i < count + 16; ++i) REQUIRE(accumulator[i] == (i < count ? 2.0f : 7.0f));
    }
  }
}

TEST_CASE("the free functions use the best target's table") {
  CHECK(reduce::kernels().target == reduce::supported_targets().front().target);
  const uint16_t halves[] = {0x3c00, 0x4000, 0xc000};  // 1, 2, -2
  float accumulator[3];
  reduce::store(wire::Dtype::kF16, accumulator, reinterpret_cast<const std::byte*>(halves), 3);
  reduce::add(wire::Dtype::kF16, accumulator, reinterpret_cast<const std::byte*>(halves), 3);
  CHECK(accumulator[0] == 2.0f);
  CHECK(accumulator[1] == 4.0f);
  CHECK(accumulator[2] == -4.0f);
}

TEST_CASE("a scalar target always exists to compare with") {
  REQUIRE(!reduce::supported_targets().empty());
  for (const auto& target : reduce::supported_targets()) {
    CHECK(reduce::kernels_for(target.target).target == target.target);
  }
}
