#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "appliance/placement/largest_first.h"
#include "base/rng.h"

namespace pbox::placement {

TEST_CASE("the largest chunks come first, and equal ones keep their order") {
  const std::vector<uint32_t> bytes = {3, 9, 3, 0, 9, 0xffffffff};
  CHECK(largest_first(bytes, {0, 1, 2, 3, 4, 5}) == std::vector<uint32_t>{5, 1, 4, 0, 2, 3});
  CHECK(largest_first(bytes, {2, 0, 4}) == std::vector<uint32_t>{4, 2, 0});
  CHECK(largest_first(bytes, {}).empty());
}

TEST_CASE("chunks of any sizes are ordered as by a stable sort") {
  Rng rng(23);
  for (const uint64_t bound : {uint64_t{3}, uint64_t{5000}, uint64_t{1} << 32}) {
    std::vector<uint32_t> bytes(3000);
    for (uint32_t& size : bytes) size = static_cast<uint32_t>(rng.below(bound));
    std::vector<uint32_t> chunks(bytes.size());
    std::iota(chunks.begin(), chunks.end(), 0u);
    std::vector<uint32_t> expected = chunks;
    std::stable_sort(expected.begin(), expected.end(),
                     [&](uint32_t a, uint32_t b) { return bytes[a] > bytes[b]; });
    CHECK(largest_first(bytes, chunks) == expected);
  }
}

}  // namespace pbox::placement
