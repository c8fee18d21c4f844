// Kernels of the numeric guard: a bound on values, unsound values that count as 0, and the squares
// of a payload.
#include <bit>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>

#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

namespace {

constexpr float kLimits[] = {FLT_MAX, 65504.0f, 1.0f, 0x1.0p-20f, FLT_TRUE_MIN};

template <typename Visit>
void for_each_guarded_case(Visit visit) {
  for (const auto& target : reduce::supported_targets()) {
    for (const wire::Dtype dtype : test::kDtypes) {
      for (const size_t count : test::kCounts) {
        for (const size_t misalignment : {0, 2, 40}) {
          test::Array<std::byte> source(count * wire::dtype_bytes(dtype), misalignment);
          test::fill_payload(dtype, source.data(), count, 47 + count, true);
          INFO(target.name << " " << wire::to_string(dtype) << " count " << count
                           << " misalignment " << misalignment);
          visit(reduce::kernels_for(target.target), dtype, source.data(), count);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("every target bounds values as the reference does") {
  for_each_guarded_case(
      [](const reduce::Kernels& kernels, wire::Dtype dtype, const std::byte* source, size_t count) {
        const auto type = static_cast<size_t>(dtype);
        test::Array<float> ignored(count);
        for (const float limit : kLimits) {
          INFO("limit " << limit);
          const bool expected = reduce::reference::all_sound(dtype, source, count, limit);
          CHECK(kernels.store[type](ignored.data(), source, count, limit) == expected);
          CHECK(kernels.add[type](ignored.data(), source, count, limit) == expected);
        }
      });
}

TEST_CASE("unsound values count as 0 on every target, bit for bit as in the reference") {
  for_each_guarded_case(
      [](const reduce::Kernels& kernels, wire::Dtype dtype, const std::byte* source, size_t count) {
        const auto type = static_cast<size_t>(dtype);
        for (const float limit : kLimits) {
          INFO("limit " << limit);
          test::Array<float> expected(count), actual(count);
          const bool are_sound =
              reduce::reference::store_sound(dtype, expected.data(), source, count, limit);
          CHECK(kernels.store_sound[type](actual.data(), source, count, limit) == are_sound);
          CHECK(test::bits(actual.data(), count) == test::bits(expected.data(), count));
          for (size_t i = 0; i < count; ++i) REQUIRE(std::fabs(expected[i]) <= limit);
          reduce::reference::add_sound(dtype, expected.data(), source, count, limit);
          CHECK(kernels.add_sound[type](actual.data(), source, count, limit) == are_sound);
          CHECK(test::bits(actual.data(), count) == test::bits(expected.data(), count));
        }
      });
}

TEST_CASE("without unsound values the kernels that zero them give the sums of those that do not") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const wire::Dtype dtype : test::kDtypes) {
      const auto type = static_cast<size_t>(dtype);
      constexpr size_t kCount = 1023;
      test::Array<std::byte> source(kCount * wire::dtype_bytes(dtype));
      test::fill_payload(dtype, source.data(), kCount, 5, false);
      test::Array<float> plain(kCount), guarded(kCount);
      CHECK(kernels.store[type](plain.data(), source.data(), kCount, FLT_MAX));
      CHECK(kernels.store_sound[type](guarded.data(), source.data(), kCount, FLT_MAX));
      CHECK(kernels.add[type](plain.data(), source.data(), kCount, FLT_MAX));
      CHECK(kernels.add_sound[type](guarded.data(), source.data(), kCount, FLT_MAX));
      CHECK(test::bits(plain.data(), kCount) == test::bits(guarded.data(), kCount));
    }
  }
}

TEST_CASE("the bound itself is sound, and the next value beyond it is not") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const float limit : {1.0f, 1.5f, 1e30f, FLT_MAX}) {
      for (const float sign : {1.0f, -1.0f}) {
        float value = sign * limit;
        float sum = 0;
        CHECK(kernels.store[0](&sum, reinterpret_cast<std::byte*>(&value), 1, limit));
        value = std::nextafterf(value, sign * INFINITY);
        CHECK_FALSE(kernels.store[0](&sum, reinterpret_cast<std::byte*>(&value), 1, limit));
      }
    }
  }
}

TEST_CASE("every target adds up the finite squares of a payload bit for bit as the reference") {
  for_each_guarded_case(
      [](const reduce::Kernels& kernels, wire::Dtype dtype, const std::byte* source, size_t count) {
        const double expected = reduce::reference::finite_squares(dtype, source, count);
        const double squares = kernels.finite_squares[static_cast<size_t>(dtype)](source, count);
        CHECK(std::isfinite(expected));
        CHECK(std::bit_cast<uint64_t>(squares) == std::bit_cast<uint64_t>(expected));
      });
}

TEST_CASE("squares of the largest and of the smallest values neither overflow nor vanish") {
  const float values[] = {FLT_MAX, -FLT_MAX, 3.0f, FLT_TRUE_MIN};
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  CHECK(reduce::finite_squares(wire::Dtype::kF32, bytes, 2) == 2.0 * FLT_MAX * double{FLT_MAX});
  CHECK(reduce::finite_squares(wire::Dtype::kF32, bytes + 8, 1) == 9.0);
  CHECK(reduce::finite_squares(wire::Dtype::kF32, bytes + 12, 1) > 0);
}
