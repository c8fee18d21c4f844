#include <catch2/catch.hpp>
#include <set>
#include <utility>

#include "nic/quantize/rounding.h"

using namespace pbox::quantize;

TEST_CASE("every field of what is rounded changes the key") {
  const RoundingSource source{.seed = 1, .tensor = 2, .first_element = 64, .rank = 3, .round = 5};
  std::set<std::pair<uint32_t, uint32_t>> keys;
  const auto add = [&](RoundingSource changed) {
    const RoundingKey key = key_of(changed);
    keys.insert({key.low, key.high});
  };
  add(source);
  add(source);
  CHECK(keys.size() == 1);
  RoundingSource changed = source;
  changed.seed = 9;
  add(changed);
  changed = source;
  changed.tensor = 9;
  add(changed);
  changed = source;
  changed.first_element = 128;
  add(changed);
  changed = source;
  changed.rank = 5;
  changed.round = 3;
  add(changed);
  changed = source;
  changed.round = 6;
  add(changed);
  CHECK(keys.size() == 6);
}

TEST_CASE("random numbers are the same in each release, and never come twice") {
  static_assert(hash_of("train") == 0xdee795a6c5087209u);
  const RoundingKey key = key_of({.seed = hash_of("train"),
                                  .tensor = hash_of("layer1.weight"),
                                  .first_element = 8064,
                                  .rank = 3,
                                  .round = 17});
  CHECK(key.low == 0x57ef17ffu);
  CHECK(key.high == 0x033cd725u);
  CHECK(random_bits(key, 0) == 0x96efb747u);
  CHECK(random_bits(key, 12'345) == 0x75ca61e4u);
  std::set<uint32_t> drawn;
  for (uint32_t counter = 0; counter < 10'000; ++counter) drawn.insert(random_bits(key, counter));
  CHECK(drawn.size() == 10'000);  // the hash is a bijection of the counter
  CHECK(random_bits(key, 0) != random_bits({key.low + 1, key.high}, 0));
  CHECK(random_bits(key, 0) != random_bits({key.low, key.high + 1}, 0));
}

TEST_CASE("both halves of the random numbers are uniform") {
  constexpr uint32_t kDraws = 1 << 16;
  constexpr uint32_t kBins = 64;
  uint32_t low[kBins] = {}, high[kBins] = {};
  const RoundingKey key = key_of({.seed = 7, .tensor = 11, .rank = 2, .round = 3});
  for (uint32_t counter = 0; counter < kDraws; ++counter) {
    const uint32_t bits = random_bits(key, counter);
    ++low[(bits & 0xffffu) * kBins >> 16];
    ++high[(bits >> 16) * kBins >> 16];
  }
  // 1,024 are expected in each bin, with a standard deviation of 32.
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    CHECK((low[bin] > 850 && low[bin] < 1200));
    CHECK((high[bin] > 850 && high[bin] < 1200));
  }
}
