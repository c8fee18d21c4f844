#include <bit>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "nic/quantize/quantize.h"
#include "nic/quantize/reference.h"

using namespace pbox;
using namespace pbox::quantize;
using wire::Dtype;

namespace {

constexpr Dtype kFormats[] = {Dtype::kQ8, Dtype::kQ4};
constexpr size_t kCounts[] = {0,  1,  2,  15,  16,  17,  31,   32,  33,
                              63, 64, 65, 127, 128, 200, 1344, 2625};
constexpr RoundingKey kKey{0x0badcafeu, 0x1337u};

// Values whose magnitudes differ by block: ordinary ones, very small and very large ones, zeros,
// denormals, and now and then an infinity or a NaN.
std::vector<float> values_of(size_t count, uint64_t seed, bool hard) {
  Rng rng(seed);
  std::vector<float> values(count);
  float magnitude = 1;
  for (size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) magnitude = static_cast<float>(std::exp2(60.0 * rng.unit() - 40.0));
    if (hard && i % 64 == 0) {
      constexpr float kHard[] = {0.0f,         0x1.0p-101f, 0x1.0p-100f, 0x1.0p-99f,
                                 FLT_TRUE_MIN, 0x1.0p119f,  0x1.0p120f,  0x1.8p120f};
      magnitude = kHard[rng.below(std::size(kHard))];
    }
    values[i] = static_cast<float>(2 * rng.unit() - 1) * magnitude;
    if (!hard) continue;
    const uint64_t which = rng.below(512);
    if (which == 0) values[i] = INFINITY;
    if (which == 1) values[i] = std::bit_cast<float>(0xffc12345u);
    if (which == 2) values[i] = FLT_MAX;
    if (which == 3) values[i] = -0.0f;
  }
  return values;
}

std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out(values.size());
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
  return out;
}

size_t bytes_of(Dtype dtype, size_t count) {
  return wire::payload_bytes(dtype, static_cast<uint32_t>(count));
}

std::vector<float> decoded(Dtype dtype, const std::vector<std::byte>& blocks, size_t count) {
  std::vector<float> values(count);
  kernels().store[format_index(dtype)](values.data(), blocks.data(), count, FLT_MAX);
  return values;
}

template <typename Visit>
void for_each_case(Visit visit) {
  REQUIRE_FALSE(supported_targets().empty());
  for (const auto& target : supported_targets()) {
    for (const Dtype dtype : kFormats) {
      for (const size_t count : kCounts) {
        INFO(target.name << " " << wire::to_string(dtype) << " count " << count);
        visit(kernels_for(target.target), dtype, count);
      }
    }
  }
}

}  // namespace

TEST_CASE("every target encodes bit for bit as the reference, and leaves the same residue") {
  for (const bool hard : {false, true}) {
    for_each_case([&](const Kernels& kernels, Dtype dtype, size_t count) {
      const auto values = values_of(count, 3 + count, hard);
      auto expected_residue = values_of(count, 7 + count, false);
      auto residue = expected_residue;
      // One more byte at each end shows a write beyond the blocks; the payload is not aligned.
      std::vector<std::byte> expected(bytes_of(dtype, count) + 2, std::byte{0xa5});
      auto blocks = expected;
      reference::encode(dtype, expected.data() + 1, values.data(), expected_residue.data(), count,
                        kKey);
      kernels.encode[format_index(dtype)](blocks.data() + 1, values.data(), residue.data(), count,
                                          kKey);
      CHECK(blocks == expected);
      CHECK(bits(residue) == bits(expected_residue));
      CHECK(blocks.front() == std::byte{0xa5});
      CHECK(blocks.back() == std::byte{0xa5});
    });
  }
}

TEST_CASE("every target decodes and adds any bytes bit for bit as the reference") {
  for_each_case([](const Kernels& kernels, Dtype dtype, size_t count) {
    const size_t format = format_index(dtype);
    std::vector<std::byte> blocks(bytes_of(dtype, count) + 1);
    Rng rng(count + 19);
    for (auto& byte : blocks) byte = static_cast<std::byte>(rng.below(256));
    const std::byte* payload = blocks.data() + 1;
    for (const float limit : {FLT_MAX, 1e10f, 1.0f, FLT_TRUE_MIN}) {
      for (const bool zeroes : {false, true}) {
        INFO("limit " << limit << " zeroes " << zeroes);
        auto expected = values_of(count, 5, false);
        auto actual = expected;
        const auto& store = zeroes ? kernels.store_sound : kernels.store;
        const auto& add = zeroes ? kernels.add_sound : kernels.add;
        const auto reference = [&](bool adds) {
          return reference::accumulate(dtype, expected.data(), payload, count, limit, adds, zeroes);
        };
        CHECK(add[format](actual.data(), payload, count, limit) == reference(true));
        CHECK(bits(actual) == bits(expected));
        CHECK(store[format](actual.data(), payload, count, limit) == reference(false));
        CHECK(bits(actual) == bits(expected));
      }
    }
  });
}

TEST_CASE("the elements that are sent and the residue together are the values") {
  for (const Dtype dtype : kFormats) {
    constexpr size_t kCount = 1000;
    const auto values = values_of(kCount, 11, false);
    const auto before = values_of(kCount, 12, false);
    auto residue = before;
    std::vector<std::byte> blocks(bytes_of(dtype, kCount));
    kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), kCount,
                                          kKey);
    const auto sent = decoded(dtype, blocks, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const double exact = double{values[i]} + double{before[i]};
      const double scale = std::fabs(double{
          reference::get_scale(dtype, blocks.data() + i / wire::block_layout(dtype).elements *
                                                          wire::block_layout(dtype).bytes)});
      REQUIRE(std::fabs(double{sent[i]} + double{residue[i]} - exact) <= scale * 0x1.0p-14);
      REQUIRE(std::fabs(double{residue[i]}) <= scale * 1.001);
    }
  }
}

TEST_CASE("a scale is large enough for its block, and at most one step larger") {
  for (const Dtype dtype : kFormats) {
    const auto most = double{reference::integer_max(dtype)};
    Rng rng(23);
    for (int round = 0; round < 20'000; ++round) {
      const auto largest = static_cast<float>(std::exp2(200.0 * rng.unit() - 99.0));
      const auto scale = reference::scale_of(dtype, std::bit_cast<uint32_t>(largest));
      REQUIRE(scale.kind ==
              (largest > 0x1.0p120f ? reference::BlockKind::kNan : reference::BlockKind::kScaled));
      if (scale.kind == reference::BlockKind::kNan) continue;
      REQUIRE(scale.value * most >= largest * (1 - 0x1.0p-23));
      REQUIRE(scale.value * most <= largest * (dtype == Dtype::kQ8 ? 1 + 0x1.0p-6 : 2.0));
      std::byte coded[2];
      reference::put_scale(dtype, coded, scale.coded);
      REQUIRE(reference::get_scale(dtype, coded) == scale.value);
    }
  }
}

TEST_CASE("rounding is unbiased, and never gives an integer that a block cannot hold") {
  for (const Dtype dtype : kFormats) {
    const uint32_t elements = wire::block_layout(dtype).elements;
    std::vector<float> values(elements);
    for (uint32_t i = 0; i < elements; ++i) {
      values[i] = -1.0f + 2.0f * static_cast<float>(i) / static_cast<float>(elements - 1);
    }
    std::vector<double> sums(elements);
    constexpr uint32_t kRounds = 4000;
    std::vector<std::byte> blocks(bytes_of(dtype, elements));
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::vector<float> none(elements, 0.0f);
      kernels().encode[format_index(dtype)](
          blocks.data(), values.data(), none.data(), elements,
          key_of({.seed = 1, .tensor = 2, .rank = 3, .round = round}));
      const auto sent = decoded(dtype, blocks, elements);
      for (uint32_t i = 0; i < elements; ++i) {
        REQUIRE(std::abs(reference::get_integer(dtype, blocks.data(), i)) <=
                static_cast<int>(reference::integer_max(dtype)));
        sums[i] += double{sent[i]};
      }
    }
    // The standard deviation of a draw is at most half a step, that of the mean 1/126 of a step.
    const double step = double{reference::get_scale(dtype, blocks.data())};
    for (uint32_t i = 0; i < elements; ++i) {
      CHECK(std::fabs(sums[i] / kRounds - double{values[i]}) < step * 0.045);
    }
  }
}

TEST_CASE("with error feedback the sum over rounds is exact but for one step") {
  for (const Dtype dtype : kFormats) {
    constexpr size_t kCount = 256;
    constexpr uint32_t kRounds = 500;
    const auto values = values_of(kCount, 31, false);
    std::vector<float> residue(kCount, 0.0f);
    std::vector<double> sums(kCount, 0.0);
    std::vector<std::byte> blocks(bytes_of(dtype, kCount));
    for (uint32_t round = 0; round < kRounds; ++round) {
      kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), kCount,
                                            key_of({.round = round}));
      const auto sent = decoded(dtype, blocks, kCount);
      for (size_t i = 0; i < kCount; ++i) sums[i] += double{sent[i]};
    }
    for (size_t i = 0; i < kCount; ++i) {
      const double scale = double{
          reference::get_scale(dtype, blocks.data() + i / wire::block_layout(dtype).elements *
                                                          wire::block_layout(dtype).bytes)};
      CHECK(std::fabs(sums[i] - kRounds * double{values[i]}) <= 4 * scale);
    }
  }
}

TEST_CASE("an encoding repeats with its key, and differs with another") {
  for (const Dtype dtype : kFormats) {
    constexpr size_t kCount = 640;
    const auto values = values_of(kCount, 41, false);
    const auto encoded = [&](RoundingKey key) {
      std::vector<float> residue(kCount, 0.0f);
      std::vector<std::byte> blocks(bytes_of(dtype, kCount));
      kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), kCount,
                                            key);
      return blocks;
    };
    CHECK(encoded(kKey) == encoded(kKey));
    CHECK(encoded(kKey) != encoded({kKey.low, kKey.high + 1}));
  }
}

TEST_CASE("an infinity, a NaN or an enormous value makes its block NaN and keeps the residue") {
  for (const Dtype dtype : kFormats) {
    for (const float unsound : {INFINITY, -INFINITY, NAN, FLT_MAX, 0x1.8p120f}) {
      const size_t count = 2 * wire::block_layout(dtype).elements;
      std::vector<float> values(count, 1.0f), residue(count, 0.25f);
      values[3] = unsound;
      std::vector<std::byte> blocks(bytes_of(dtype, count));
      kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), count,
                                            kKey);
      std::vector<float> sent(count);
      CHECK_FALSE(kernels().store[format_index(dtype)](sent.data(), blocks.data(), count, FLT_MAX));
      for (size_t i = 0; i < count / 2; ++i) {
        CHECK(std::isnan(sent[i]));
        CHECK(residue[i] == 0.25f);
      }
      for (size_t i = count / 2; i < count; ++i) CHECK(std::fabs(sent[i] - 1.25f) <= 0.25f);
      kernels().store_sound[format_index(dtype)](sent.data(), blocks.data(), count, FLT_MAX);
      CHECK(std::accumulate(sent.begin(), sent.begin() + ptrdiff_t(count / 2), 0.0f) == 0.0f);
    }
  }
}

TEST_CASE("zeros are sent as zeros, and very small values stay in the residue until they count") {
  for (const Dtype dtype : kFormats) {
    const size_t count = wire::block_layout(dtype).elements;
    std::vector<float> values(count, 0.0f), residue(count, 0.0f);
    std::vector<std::byte> blocks(bytes_of(dtype, count), std::byte{0xff});
    const auto encode = [&] {
      kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), count,
                                            kKey);
    };
    encode();
    for (const float value : decoded(dtype, blocks, count)) CHECK(value == 0.0f);
    values[1] = 0x1.8p-101f;
    encode();
    for (const float value : decoded(dtype, blocks, count)) CHECK(value == 0.0f);
    CHECK(residue[1] == 0x1.8p-101f);
    encode();
    const auto sent = decoded(dtype, blocks, count);
    CHECK(sent[1] + residue[1] == 0x1.8p-100f);
    CHECK(sent[1] > 0.0f);
  }
}

TEST_CASE("squares are those of the decoded elements, without infinities and NaNs") {
  for (const Dtype dtype : kFormats) {
    constexpr size_t kCount = 300;
    auto values = values_of(kCount, 51, false);
    values[130] = INFINITY;
    std::vector<float> residue(kCount, 0.0f);
    std::vector<std::byte> blocks(bytes_of(dtype, kCount));
    kernels().encode[format_index(dtype)](blocks.data(), values.data(), residue.data(), kCount,
                                          kKey);
    double expected = 0;
    for (const float value : decoded(dtype, blocks, kCount)) {
      if (std::isfinite(value)) expected += double{value} * double{value};
    }
    CHECK(finite_squares(dtype, blocks.data(), kCount) == expected);
    CHECK(expected > 0);
  }
}
