#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "appliance/placement/place.h"
#include "base/rng.h"

namespace pbox::placement::place_test {
namespace {

std::vector<BoxIndex> place_all(const std::vector<uint32_t>& bytes, std::vector<BoxLoad> loads) {
  std::vector<uint32_t> all(bytes.size());
  std::iota(all.begin(), all.end(), 0u);
  std::vector<BoxIndex> box_of_chunk(bytes.size(), kNoBox);
  place_largest_first(bytes, all, loads, box_of_chunk);
  return box_of_chunk;
}

struct Case {
  const char* what;
  std::vector<uint32_t> bytes;
  std::vector<BoxLoad> loads;
  std::vector<BoxIndex> expected;
};

}  // namespace

TEST_CASE("each chunk, largest first, goes to the box that would finish first") {
  const std::vector<Case> cases = {
      {"equal boxes: as bins of bytes", {1, 5, 3, 4, 3}, {{0, 1}, {0, 1}}, {1, 0, 1, 1, 0}},
      {"twice the rate: two of three", {9, 9, 9}, {{0, 1}, {0, 2}}, {1, 0, 1}},
      {"a slow box is passed over", {8, 1}, {{0, 1}, {0, 100}}, {1, 1}},
      {"bytes that a box has count", {10, 10}, {{25, 1}, {4, 1}}, {1, 1}},
      {"boxes of rate 0 get nothing", {1, 1}, {{0, 0}, {0, 1}, {0, 0}}, {1, 1}},
      {"no chunks", {}, {{0, 1}}, {}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(place_all(c.bytes, c.loads) == c.expected);
  }
}

TEST_CASE("chunks that are not to be placed stay where they are, and loads grow by the others") {
  const std::vector<uint32_t> bytes = {10, 20, 30};
  std::vector<BoxLoad> loads = {{5, 1}, {0, 1}};
  std::vector<BoxIndex> box_of_chunk = {0, kNoBox, kNoBox};
  place_largest_first(bytes, {1, 2}, loads, box_of_chunk);
  CHECK(box_of_chunk == std::vector<BoxIndex>{0, 0, 1});
  CHECK(loads[0].bytes == 25);
  CHECK(loads[1].bytes == 30);
}

TEST_CASE(
    "no box takes longer than its fair share plus one chunk, and equal inputs give equal maps") {
  Rng rng(7);
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::vector<BoxLoad> boxes;
    double rate = 0;
    for (size_t i = 0; i < 1 + rng.below(12); ++i) {
      boxes.push_back({0, 1 + 9 * rng.unit()});
      rate += boxes.back().bytes_per_second;
    }
    std::vector<uint32_t> bytes(rng.below(400));
    const bool few_sizes = rng.below(2) == 0;
    for (uint32_t& size : bytes) {
      size = 1 + static_cast<uint32_t>(few_sizes ? 100 * rng.below(3) : rng.below(32768));
    }
    const std::vector<BoxIndex> placed = place_all(bytes, boxes);
    double longest = 0;
    for (size_t box = 0; box < boxes.size(); ++box) {
      double load = 0;
      for (size_t chunk = 0; chunk < bytes.size(); ++chunk) {
        if (placed[chunk] == box) load += bytes[chunk];
      }
      longest = std::max(longest, load / boxes[box].bytes_per_second);
    }
    const double total = std::accumulate(bytes.begin(), bytes.end(), 0.0);
    const double largest = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
    // The last chunk of the box that finishes last would not have finished earlier on another box:
    // rate_j * makespan <= load_j + chunk for every j, and therefore also for the sums.
    const double count = static_cast<double>(boxes.size());
    CHECK(longest <= (total + (count - 1) * largest) / rate * (1 + 1e-12));
    CHECK(place_all(bytes, boxes) == placed);
  }
}

}  // namespace pbox::placement::place_test
