#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "appliance/placement/chunk_map.h"
#include "base/rng.h"

namespace pbox::placement {
namespace {

std::vector<uint64_t> loads_of(const std::vector<uint32_t>& bytes, const std::vector<uint8_t>& bins,
                               std::vector<uint64_t> loads) {
  for (size_t chunk = 0; chunk < bytes.size(); ++chunk) loads[bins[chunk]] += bytes[chunk];
  return loads;
}

}  // namespace

TEST_CASE("the largest chunks go first, each into the least loaded bin") {
  const std::vector<uint32_t> bytes = {1, 5, 3, 4, 3};
  // 5 -> bin 0, 4 -> bin 1, 3 (chunk 2) -> bin 1, 3 (chunk 4) -> bin 0, 1 -> bin 1
  REQUIRE(assign_chunks(bytes, {0, 0}) == std::vector<uint8_t>{1, 0, 1, 1, 0});
}

TEST_CASE("chunks of one size are dealt round robin, ties to the lower bin") {
  const std::vector<uint32_t> bytes(7, 100);
  REQUIRE(assign_chunks(bytes, {0, 0, 0}) == std::vector<uint8_t>{0, 1, 2, 0, 1, 2, 0});
}

TEST_CASE("the load that a bin already carries counts") {
  const std::vector<uint32_t> bytes = {10, 10, 10};
  REQUIRE(assign_chunks(bytes, {25, 0}) == std::vector<uint8_t>{1, 1, 1});
  REQUIRE(assign_chunks(bytes, {15, 0}) == std::vector<uint8_t>{1, 1, 0});
}

TEST_CASE("a single bin takes all chunks, and a map of no chunks is empty") {
  REQUIRE(assign_chunks(std::vector<uint32_t>{3, 2, 1}, {0}) == std::vector<uint8_t>{0, 0, 0});
  REQUIRE(assign_chunks(std::vector<uint32_t>{}, {0, 7}).empty());
}

TEST_CASE("no bin is heavier than 4/3 of the lower bound of every partition") {
  Rng rng(41);
  for (int repetition = 0; repetition < 300; ++repetition) {
    const size_t bins = 1 + rng.below(9);
    std::vector<uint32_t> bytes(1 + rng.below(200));
    for (auto& size : bytes) size = 1 + static_cast<uint32_t>(rng.below(32768));
    const auto loads = loads_of(bytes, assign_chunks(bytes, std::vector<uint64_t>(bins)),
                                std::vector<uint64_t>(bins));
    const uint64_t total = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
    std::sort(bytes.rbegin(), bytes.rend());
    // Any partition has a bin at least this heavy: the mean, the largest chunk, or, with more
    // chunks than bins, two chunks that must share one.
    uint64_t bound = std::max<uint64_t>((total + bins - 1) / bins, bytes[0]);
    if (bytes.size() > bins) bound = std::max(bound, uint64_t{bytes[bins - 1]} + bytes[bins]);
    const uint64_t heaviest = *std::max_element(loads.begin(), loads.end());
    // Graham's bound holds for list scheduling against these lower bounds.
    REQUIRE(heaviest <= total / bins + bytes[0]);
    if (bytes.size() >= 4 * bins) REQUIRE(3 * heaviest <= 4 * bound + 3);
    REQUIRE(std::accumulate(loads.begin(), loads.end(), uint64_t{0}) == total);
  }
}

TEST_CASE("with equal sizes, bins differ by at most one chunk") {
  const std::vector<uint32_t> bytes(1001, 32768);
  const auto loads = loads_of(bytes, assign_chunks(bytes, {0, 0, 0, 0}), {0, 0, 0, 0});
  const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
  REQUIRE(*most - *least == 32768);
}

}  // namespace pbox::placement
