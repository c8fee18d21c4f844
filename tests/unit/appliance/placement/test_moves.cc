#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "appliance/placement/moves.h"
#include "base/rng.h"

namespace pbox::placement::moves_test {
namespace {

struct Case {
  const char* what;
  std::vector<uint32_t> bytes;
  std::vector<BoxIndex> boxes;
  std::vector<double> rates;
  Leveling leveling;
  std::vector<Move> expected;
};

}  // namespace

TEST_CASE("moves bring boxes to their shares, and no chunk moves without need") {
  const std::vector<Case> cases = {
      {"level already", {4, 4}, {0, 1}, {1, 1}, Leveling::kFull, {}},
      {"the largest that fits goes",
       {4, 3, 2, 1},
       {0, 0, 0, 0},
       {1, 1},
       Leveling::kFull,
       {{0, 0, 1}, {3, 0, 1}}},
      {"shares follow rates", {1, 1, 1, 1}, {0, 0, 1, 1}, {1, 3}, Leveling::kFull, {{0, 0, 1}}},
      {"nothing fits into the surplus", {5, 5, 5}, {0, 0, 1}, {1, 1}, Leveling::kFull, {}},
      {"a box that takes none loses all, the others keep theirs",
       {1, 1, 1, 1, 1},
       {0, 0, 1, 1, 2},
       {0, 1, 1},
       Leveling::kNone,
       {{0, 0, 2}, {1, 0, 1}}},
      {"an empty box gets its share",
       {2, 2, 2, 2},
       {0, 0, 1, 1},
       {1, 1, 2},
       Leveling::kFull,
       {{0, 0, 2}, {2, 1, 2}}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    const std::vector<Move> moves = moves_for(c.bytes, c.boxes, c.rates, c.leveling);
    CHECK(moves == c.expected);
  }
}

TEST_CASE("leveling never makes the slowest box slower, and ends near the shares") {
  Rng rng(19);
  for (int repetition = 0; repetition < 200; ++repetition) {
    const size_t boxes = 2 + rng.below(8);
    std::vector<double> rates(boxes);
    for (double& rate : rates) rate = rng.below(5) == 0 ? 0 : 1 + 3 * rng.unit();
    rates[0] = 2;
    std::vector<uint32_t> bytes(1000);
    std::vector<BoxIndex> map(bytes.size());
    for (size_t chunk = 0; chunk < bytes.size(); ++chunk) {
      bytes[chunk] = 1 + static_cast<uint32_t>(rng.below(1000));
      map[chunk] = static_cast<BoxIndex>(rng.below(boxes));
    }
    const std::vector<double> before = bytes_by_box(bytes, map, boxes);
    for (const Move& move : moves_for(bytes, map, rates, Leveling::kFull)) {
      REQUIRE(map[move.chunk] == move.from);
      REQUIRE(rates[move.to] > 0);
      map[move.chunk] = move.to;
    }
    const std::vector<double> after = bytes_by_box(bytes, map, boxes);
    const double total = std::accumulate(after.begin(), after.end(), 0.0);
    const double rate = std::accumulate(rates.begin(), rates.end(), 0.0);
    for (size_t box = 0; box < boxes; ++box) {
      if (rates[box] == 0) CHECK(after[box] == 0);
      // Either no chunk fits into the remaining surplus, or the chunk was placed on the box that
      // would finish first.
      CHECK(after[box] <= total * rates[box] / rate + 1000);
    }
  }
}

TEST_CASE("a move is counted where it leaves and where it arrives") {
  const std::vector<uint32_t> bytes = {5, 7};
  const std::vector<Move> moves = {{0, 0, 1}, {1, 2, 1}};
  CHECK(moved_bytes_by_box(bytes, moves, 3) == std::vector<double>{5, 12, 7});
}

}  // namespace pbox::placement::moves_test
