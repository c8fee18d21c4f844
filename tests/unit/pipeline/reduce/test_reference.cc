// Checks the reference itself against the definition of the formats. Everything else is compared
// with the reference.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "nic/wire/dtype.h"
#include "pipeline/reduce/reference.h"

using namespace pbox;
using namespace pbox::reduce::reference;

namespace {

// Returns the value of a finite half by IEEE 754's formula. It is exact in double.
double value_of(uint16_t half, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (half >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = half & ((1 << mantissa_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                    : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

// For each pair of neighbouring halves: values just below their middle round down, values just
// above it round up, and the middle rounds to the even one. Covers all positive halves, and by sign
// the negative ones.
void check_rounding(uint16_t infinity, int exponent_bits, int mantissa_bits,
                    uint16_t (*narrow_one)(float)) {
  for (uint16_t half = 0; half < infinity; ++half) {
    const double low = value_of(half, exponent_bits, mantissa_bits);
    // The half after the largest finite one stands for infinity. Its value continues the sequence.
    const uint16_t next = static_cast<uint16_t>(half + 1);
    const double high = value_of(next, exponent_bits, mantissa_bits);
    const auto middle = static_cast<float>((low + high) / 2);
    const uint16_t even = (half & 1) == 0 ? half : next;
    INFO("half " << half);
    REQUIRE(narrow_one(static_cast<float>(low)) == half);
    if (static_cast<double>(middle) ==
        (low + high) / 2) {  // below 2^-149 no f32 lies in the middle
      REQUIRE(narrow_one(middle) == even);
      REQUIRE(narrow_one(-middle) == (even | 0x8000));
      REQUIRE(narrow_one(std::nextafterf(middle, 0.0f)) == half);
      REQUIRE(narrow_one(std::nextafterf(middle, std::numeric_limits<float>::infinity())) == next);
    }
  }
}

}  // namespace

TEST_CASE("widening gives a finite half the value of its format") {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<uint16_t>(half);
    if ((bits & 0x7c00) != 0x7c00) {
      REQUIRE(static_cast<double>(widen_f16(bits)) == value_of(bits, 5, 10));
      REQUIRE(std::signbit(widen_f16(bits)) == ((bits & 0x8000) != 0));
    }
    if ((bits & 0x7f80) != 0x7f80) {
      REQUIRE(static_cast<double>(widen_bf16(bits)) == value_of(bits, 8, 7));
      REQUIRE(std::signbit(widen_bf16(bits)) == ((bits & 0x8000) != 0));
    }
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even, overflow to infinity") {
  check_rounding(0x7c00, 5, 10, narrow_f16);
  check_rounding(0x7f80, 8, 7, narrow_bf16);
}

TEST_CASE("infinities and NaNs keep their kind and sign through widening and narrowing") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(widen_f16(0x7c00) == infinity);
  CHECK(widen_f16(0xfc00) == -infinity);
  CHECK(widen_bf16(0xff80) == -infinity);
  CHECK(narrow_f16(infinity) == 0x7c00);
  CHECK(narrow_f16(-infinity) == 0xfc00);
  CHECK(narrow_bf16(infinity) == 0x7f80);
  CHECK(std::isnan(widen_f16(0x7c01)));
  CHECK(std::isnan(widen_bf16(0x7f81)));
  // All payload bits of the NaN are dropped. It must not become an infinity.
  CHECK(narrow_f16(std::bit_cast<float>(0x7f800001u)) == 0x7e00);
  CHECK(narrow_bf16(std::bit_cast<float>(0xff800001u)) == 0xffc0);
  CHECK(narrow_bf16(std::bit_cast<float>(0x7fffffffu)) == 0x7fff);
}

TEST_CASE("dtypes know their names and sizes") {
  CHECK(wire::dtype_bytes(wire::Dtype::kF32) == 4);
  CHECK(wire::dtype_bytes(wire::Dtype::kF16) == 2);
  CHECK(wire::dtype_bytes(wire::Dtype::kBf16) == 2);
  CHECK(std::string(wire::to_string(wire::Dtype::kF32)) == "f32");
  CHECK(std::string(wire::to_string(wire::Dtype::kF16)) == "f16");
  CHECK(std::string(wire::to_string(wire::Dtype::kBf16)) == "bf16");
}
