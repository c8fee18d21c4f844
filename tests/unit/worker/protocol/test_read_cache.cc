// The cache against a model that keeps everything and computes with single numbers.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <span>

#include "base/rng.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/reduce/reference.h"
#include "worker/protocol/read_cache.h"

namespace pbox::test::read_cache_test {
namespace {

using worker::CachedChunk;
using worker::ReadCache;
using Bytes = std::vector<std::byte>;

constexpr uint32_t kFragmentBytes = 4 * 1024 + 64;

NumaArena arena_of(uint64_t bytes) {
  auto arena = NumaArena::create(bytes, kAnyNumaNode, Hugepages::kNever);
  REQUIRE(arena.ok());
  return std::move(*arena);
}

Bytes encode(wire::Dtype dtype, const std::vector<float>& values) {
  Bytes bytes(values.size() * wire::dtype_bytes(dtype));
  reduce::reference::narrow(dtype, bytes.data(), values.data(), values.size());
  return bytes;
}

// Multiples of 1/8, which are exact in every dtype, as are their sums here.
std::vector<float> numbers(Rng& rng, size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.below(17)) / 8 - 1;
  return values;
}

// The box's knowledge of one worker's chunk, and the reads that follow from it.
class Account {
 public:
  Account(CachedChunk layout, float scale) : layout_(layout), scale_(scale) {}

  void store(uint32_t fragment, ReadCache::Version version, const std::vector<float>& values) {
    auto& here = fragments_[fragment];
    if (version.clock < here.version.clock ||
        (version.clock == here.version.clock && version.applied <= here.version.applied)) {
      return;
    }
    here = {version, values};
  }
  void push(uint32_t round, float rate, const std::vector<float>& gradient) {
    pushes_[round] = {rate, gradient};
  }
  // Returns what the worker reads after its push of this round.
  Bytes read(uint32_t round) const {
    std::vector<float> weights;
    for (const auto& [index, fragment] : fragments_) {
      for (const float start : fragment.values) {
        float weight = start;
        for (uint32_t own = fragment.version.applied; own <= round; ++own) {
          const auto& [rate, gradient] = pushes_.at(own);
          weight -= rate * layout_.lr_scale * (scale_ * gradient[weights.size()]);
        }
        weights.push_back(weight);
      }
    }
    return encode(layout_.dtype, weights);
  }

 private:
  struct Fragment {
    ReadCache::Version version;
    std::vector<float> values;
  };
  struct Push {
    float rate = 0;
    std::vector<float> gradient;
  };
  CachedChunk layout_;
  float scale_;
  std::map<uint32_t, Fragment> fragments_;
  std::map<uint32_t, Push> pushes_;
};

uint32_t elements_of(const CachedChunk& chunk, uint32_t fragment) {
  return wire::fragment_length(chunk.bytes, chunk.fragment_bytes, fragment) /
         wire::dtype_bytes(chunk.dtype);
}

}  // namespace

TEST_CASE("reads equal those of a model that keeps every gradient, at any staleness") {
  const auto dtype = GENERATE(wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16);
  const uint32_t staleness = GENERATE(0u, 1u, 2u, 3u, 5u);
  Rng rng(staleness * 10 + static_cast<uint32_t>(dtype));
  const std::vector<CachedChunk> chunks = {
      {.bytes = 3 * kFragmentBytes + 400, .fragment_bytes = kFragmentBytes, .dtype = dtype},
      {.bytes = 4, .fragment_bytes = kFragmentBytes, .dtype = dtype, .lr_scale = 0.5f}};
  NumaArena arena = arena_of(ReadCache::footprint_bytes(chunks, staleness));
  ReadCache cache(chunks, staleness, 0.5f, {}, arena);
  std::vector<Account> accounts = {{chunks[0], 0.5f}, {chunks[1], 0.5f}};
  const auto store = [&](uint32_t chunk, uint32_t fragment, ReadCache::Version version) {
    const auto values = numbers(rng, elements_of(chunks[chunk], fragment));
    cache.store(chunk, fragment, version, encode(dtype, values).data());
    accounts[chunk].store(fragment, version, values);
  };
  const uint32_t fragment_counts[] = {4, 1};
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    for (uint32_t at = 0; at < fragment_counts[chunk]; ++at) store(chunk, at, {1, 1});
  }
  for (uint32_t round = 1; round < 60; ++round) {
    for (uint32_t chunk = 0; chunk < 2; ++chunk) {
      // Old and new versions in any order; the last one of each fragment is new enough.
      for (uint64_t count = rng.below(6); count > 0; --count) {
        const auto clock = static_cast<uint32_t>(1 + rng.below(round + 1));
        const auto applied = static_cast<uint32_t>(clock + rng.below(round + 2 - clock));
        store(chunk, static_cast<uint32_t>(rng.below(fragment_counts[chunk])), {clock, applied});
      }
      const uint32_t needed = round + 1 > staleness ? round + 1 - staleness : 0;
      for (uint32_t at = 0; at < fragment_counts[chunk]; ++at) {
        if ((cache.readable_mask(chunk, round) >> at & 1) != 0) continue;
        const auto applied = static_cast<uint32_t>(needed + rng.below(round + 2 - needed));
        store(chunk, at, {needed, applied});
      }
      REQUIRE(cache.is_readable(chunk, round));
      const float rate = 0.25f * static_cast<float>(1 + rng.below(4));
      const size_t elements = chunks[chunk].bytes / wire::dtype_bytes(dtype);
      const auto gradient = numbers(rng, elements);
      Bytes buffer = encode(dtype, gradient);
      accounts[chunk].push(round, rate, gradient);
      cache.read(chunk, round, rate, buffer.data(), buffer.data());
      REQUIRE(buffer == accounts[chunk].read(round));
    }
  }
}

TEST_CASE("a chunk is as new as its oldest fragment, and readable within the bound") {
  const std::vector<CachedChunk> chunks = {
      {.bytes = 2 * kFragmentBytes, .fragment_bytes = kFragmentBytes}};
  NumaArena arena = arena_of(ReadCache::footprint_bytes(chunks, 2));
  ReadCache cache(chunks, 2, 1.0f, {}, arena);
  const Bytes payload(kFragmentBytes);
  CHECK(cache.clock(0) == 0);
  CHECK(cache.store(0, 0, {5, 6}, payload.data()));
  CHECK(cache.clock(0) == 0);
  CHECK(cache.store(0, 1, {3, 6}, payload.data()));
  CHECK(cache.clock(0) == 3);
  CHECK(cache.is_readable(0, 4));
  CHECK_FALSE(cache.is_readable(0, 5));
  CHECK(cache.readable_mask(0, 4) == 0b11);
  CHECK(cache.readable_mask(0, 5) == 0b01);
  CHECK(cache.readable_mask(0, 6) == 0b01);
  CHECK(cache.readable_mask(0, 7) == 0);
}

TEST_CASE("data that is as old or older overwrites nothing") {
  const std::vector<CachedChunk> chunks = {{.bytes = 4, .fragment_bytes = kFragmentBytes}};
  NumaArena arena = arena_of(ReadCache::footprint_bytes(chunks, 4));
  ReadCache cache(chunks, 4, 1.0f, {}, arena);
  const auto store = [&](uint32_t clock, uint32_t applied, float value) {
    return cache.store(0, 0, {clock, applied}, reinterpret_cast<const std::byte*>(&value));
  };
  CHECK(store(3, 3, 10.0f));
  CHECK_FALSE(store(3, 3, 20.0f));
  CHECK_FALSE(store(2, 4, 30.0f));
  CHECK(store(3, 4, 40.0f));
  float value = 8.0f;
  auto* bytes = reinterpret_cast<std::byte*>(&value);
  cache.read(0, 4, 0.5f, bytes, bytes);
  CHECK(value == 36.0f);
}

TEST_CASE("guard zero keeps own unsound values out of reads, also later; others let them in") {
  const std::vector<CachedChunk> chunks = {
      {.bytes = 4 * sizeof(float), .fragment_bytes = kFragmentBytes}};
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto policy : {wire::Guard::kFlag, wire::Guard::kZero}) {
    NumaArena arena = arena_of(ReadCache::footprint_bytes(chunks, 3));
    ReadCache cache(chunks, 3, 1.0f, {.policy = policy, .max_abs = 2}, arena);
    const std::vector<float> weights = {10, 10, 10, 10};
    REQUIRE(cache.store(0, 0, {1, 1}, reinterpret_cast<const std::byte*>(weights.data())));
    const auto read = [&](uint32_t round, std::vector<float> values) {
      auto* bytes = reinterpret_cast<std::byte*>(values.data());
      cache.read(0, round, 1, bytes, bytes);
      return values;
    };
    const auto first = read(1, {2, 2.5f, -kInfinity, std::nanf("")});
    const auto second = read(2, {1, 1, 1, 1});
    if (policy == wire::Guard::kZero) {
      CHECK(first == std::vector<float>{8, 10, 10, 10});
      CHECK(second == std::vector<float>{7, 9, 9, 9});
    } else {
      CHECK(first[1] == 7.5f);
      CHECK(first[2] == kInfinity);
      CHECK(std::isnan(second[3]));
    }
  }
}

}  // namespace pbox::test::read_cache_test
