#include <catch2/catch.hpp>

#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

namespace {

std::vector<std::byte> narrowed_by_reference(wire::Dtype dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * wire::dtype_bytes(dtype));
  reduce::reference::narrow(dtype, bytes.data(), values.data(), values.size());
  return bytes;
}

template <typename Visit>
void for_each_narrowed_case(Visit visit) {
  for (const auto& target : reduce::supported_targets()) {
    for (const wire::Dtype dtype : test::kDtypes) {
      for (const size_t count : test::kCounts) {
        INFO(target.name << " " << wire::to_string(dtype) << " count " << count);
        const auto narrow = reduce::kernels_for(target.target).narrow[static_cast<size_t>(dtype)];
        visit(narrow, dtype, test::floats(count, 41 + count, true));
      }
    }
  }
}

}  // namespace

TEST_CASE("narrow equals the reference on every target, to any alignment") {
  for_each_narrowed_case([](reduce::NarrowFunction narrow, wire::Dtype dtype,
                            const std::vector<float>& values) {
    const auto expected = narrowed_by_reference(dtype, values);
    test::Array<float> source(values.size());
    for (size_t i = 0; i < values.size(); ++i) source[i] = values[i];
    for (const size_t misalignment : {0, 1, 2, 40}) {
      test::Array<std::byte> destination(expected.size(), misalignment);
      narrow(destination.data(), source.data(), values.size());
      const std::vector<std::byte> actual(destination.data(), destination.data() + expected.size());
      CHECK(actual == expected);
    }
  });
}

TEST_CASE("narrow in place gives the same bytes as narrow to another array") {
  for_each_narrowed_case([](reduce::NarrowFunction narrow, wire::Dtype dtype,
                            const std::vector<float>& values) {
    const auto expected = narrowed_by_reference(dtype, values);
    test::Array<float> array(values.size());
    for (size_t i = 0; i < values.size(); ++i) array[i] = values[i];
    auto* bytes = reinterpret_cast<std::byte*>(array.data());
    narrow(bytes, array.data(), values.size());
    CHECK(std::vector<std::byte>(bytes, bytes + expected.size()) == expected);

    std::vector<float> by_reference = values;
    auto* reference_bytes = reinterpret_cast<std::byte*>(by_reference.data());
    reduce::reference::narrow(dtype, reference_bytes, by_reference.data(), values.size());
    CHECK(std::vector<std::byte>(reference_bytes, reference_bytes + expected.size()) == expected);
  });
}

TEST_CASE("narrow rounds as the reference at and around every rounding border") {
  // Each half h, the midpoint to the next, and their neighbours, on every target.
  for (const wire::Dtype dtype : {wire::Dtype::kF16, wire::Dtype::kBf16}) {
    const uint32_t dropped_bits = dtype == wire::Dtype::kF16 ? 13 : 16;
    std::vector<float> values;
    for (uint64_t upper = 0; upper < (uint64_t{1} << (32 - dropped_bits)); ++upper) {
      const uint32_t base = static_cast<uint32_t>(upper << dropped_bits);
      const uint32_t middle = base + (1u << (dropped_bits - 1));
      for (const uint32_t around : {base, base + 1, middle - 1, middle, middle + 1}) {
        values.push_back(std::bit_cast<float>(around));
      }
    }
    const auto expected = narrowed_by_reference(dtype, values);
    for (const auto& target : reduce::supported_targets()) {
      INFO(target.name << " " << wire::to_string(dtype));
      std::vector<std::byte> actual(expected.size());
      const auto kernels = reduce::kernels_for(target.target);
      kernels.narrow[static_cast<size_t>(dtype)](actual.data(), values.data(), values.size());
      CHECK((actual == expected));
    }
  }
}

TEST_CASE("widening and narrowing a half gives it back, with NaNs made quiet") {
  for (const wire::Dtype dtype : {wire::Dtype::kF16, wire::Dtype::kBf16}) {
    const uint16_t infinity = dtype == wire::Dtype::kF16 ? 0x7c00 : 0x7f80;
    const uint16_t quiet = dtype == wire::Dtype::kF16 ? 0x0200 : 0x0040;
    std::vector<uint16_t> halves(0x10000), back(0x10000);
    for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
    test::Array<float> wide(halves.size());
    reduce::store(dtype, wide.data(), reinterpret_cast<std::byte*>(halves.data()), halves.size());
    reduce::narrow(dtype, reinterpret_cast<std::byte*>(back.data()), wide.data(), halves.size());
    for (size_t i = 0; i < halves.size(); ++i) {
      const bool is_nan = (halves[i] & 0x7fff) > infinity;
      REQUIRE(back[i] == (is_nan ? halves[i] | quiet : halves[i]));
    }
  }
}
