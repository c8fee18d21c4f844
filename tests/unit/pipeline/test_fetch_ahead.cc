// Payloads that are summed in pieces have the same sums, whatever their length and the packet
// behind them. Packets are prefetched unless that costs time.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/rng.h"
#include "pipeline/fetch_ahead.h"

namespace pbox::pipeline {
namespace {

constexpr size_t kElementsMax = 9000;

struct Payload {
  std::vector<std::byte> bytes;
  explicit Payload(wire::Dtype dtype, size_t elements)
      : bytes(elements * wire::dtype_bytes(dtype)) {
    Rng rng(elements);
    std::vector<float> values(elements);
    for (float& value : values) value = static_cast<float>(rng.below(1000)) - 500;
    if (dtype == wire::Dtype::kF32) {
      std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin());
    } else {
      reduce::narrow(dtype, bytes.data(), values.data(), elements);
    }
  }
};

}  // namespace

TEST_CASE("a payload has the same sum in pieces as in one call") {
  const std::vector<std::byte> behind(5000);
  for (const wire::Dtype dtype : {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16}) {
    const auto type = static_cast<size_t>(dtype);
    for (const size_t elements : {0, 1, 511, 512, 513, 1024, 2047, 2048, 3001, 8192, 9000}) {
      const Payload payload(dtype, elements);
      for (const size_t follow : {0, 1, 4000, 5000}) {
        const nic::RxPacket next{
            .data = behind.data(), .bytes = static_cast<uint32_t>(follow), .from = {}};
        for (const auto sum : {reduce::kernels().store[type], reduce::kernels().add[type]}) {
          std::vector<float> whole(kElementsMax, 3), pieces(kElementsMax, 3);
          CHECK(sum(whole.data(), payload.bytes.data(), elements, FLT_MAX));
          CHECK(sum_in_pieces(sum, pieces.data(), payload.bytes,
                              std::countr_zero(wire::dtype_bytes(dtype)), FLT_MAX, next));
          CHECK(pieces == whole);
        }
      }
    }
  }
}

TEST_CASE("an element that is not finite is found in any piece") {
  for (size_t index = 0; index < 2048; index += 89) {
    Payload payload(wire::Dtype::kF32, 2048);
    const float bad = index % 2 == 0 ? std::numeric_limits<float>::infinity()
                                     : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(payload.bytes.data() + index * sizeof(bad), &bad, sizeof(bad));
    std::vector<float> sums(2048);
    CHECK_FALSE(
        sum_in_pieces(reduce::kernels().store[0], sums.data(), payload.bytes, 2, FLT_MAX, {}));
    std::fill(sums.begin(), sums.end(), 0.0f);
    CHECK_FALSE(
        sum_in_pieces(reduce::kernels().add[0], sums.data(), payload.bytes, 2, FLT_MAX, {}));
  }
}

namespace {

// Reports pairs of sampled bursts: the first assumed packets in memory, the second in a cache.
void sample(FetchChoice& choice, int pairs, uint64_t memory_cycles, uint64_t cache_cycles,
            uint64_t bytes = 64 * 1024) {
  for (int count = 0; count < 2 * pairs; ++count) {
    choice.note(choice.trial() ? cache_cycles : memory_cycles, bytes);
  }
}

}  // namespace

TEST_CASE("packets are fetched ahead unless measurements show that it costs time") {
  FetchChoice choice;
  CHECK_FALSE(choice.in_cache());
  sample(choice, 1, 8000, 7000);
  CHECK(choice.in_cache());
  sample(choice, 1, 7000, 8000);
  CHECK_FALSE(choice.in_cache());
  sample(choice, 100, 7000, 7000);  // no gain either way
  CHECK_FALSE(choice.in_cache());
}

TEST_CASE("one interrupted burst does not overturn many measurements") {
  FetchChoice choice;
  sample(choice, 3, 8000, 7000);
  sample(choice, 1, 8000, 5'000'000);
  CHECK(choice.in_cache());
}

TEST_CASE("the choice follows a change of where packets lie, however late") {
  FetchChoice choice;
  sample(choice, 10'000, 8000, 7000);
  sample(choice, FetchChoice::kVotesMax, 7000, 8000);
  CHECK_FALSE(choice.in_cache());
  sample(choice, 10'000, 7000, 8000);
  sample(choice, FetchChoice::kVotesMax, 8000, 7000);
  CHECK_FALSE(choice.in_cache());
  sample(choice, 1, 8000, 7000);
  CHECK(choice.in_cache());
}

TEST_CASE("bursts are compared by their cycles per byte") {
  FetchChoice choice;
  choice.note(8000, 64 * 1024);
  choice.note(14'000, 128 * 1024);
  CHECK(choice.in_cache());
}

}  // namespace pbox::pipeline
