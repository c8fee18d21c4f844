// The search for the largest packet that passes, against paths of every width.
#include <catch2/catch.hpp>

#include "tools/pboxctl/doctor_ladder.h"

namespace pboxctl {
namespace {

constexpr uint32_t kRungs = 32;

std::vector<bool> try_out(const std::vector<uint32_t>& sizes, uint32_t width) {
  std::vector<bool> came_back;
  for (const uint32_t size : sizes) came_back.push_back(size <= width);
  return came_back;
}

}  // namespace

TEST_CASE("few ladders find the largest size that passes, to the unit, whatever the path's width") {
  for (uint32_t width = 512; width < 32'256; width += 101) {
    Bracket bracket{512, 32'256};
    int ladders = 0;
    for (; !bracket.closed(); ++ladders) {
      const auto sizes = rungs(bracket, kRungs);
      REQUIRE(!sizes.empty());
      bracket = narrow(bracket, sizes, try_out(sizes, width));
    }
    CHECK(bracket.passes == width / kRungUnitBytes * kRungUnitBytes);
    CHECK(ladders <= 3);
  }
}

TEST_CASE("rungs lie strictly between the known bounds, each once, in units") {
  for (uint32_t fails = 512 + kRungUnitBytes; fails < 1'000; fails += kRungUnitBytes) {
    const Bracket bracket{512, fails};
    uint32_t before = bracket.passes;
    for (const uint32_t size : rungs(bracket, kRungs)) {
      CHECK(size > before);
      CHECK(size < fails);
      CHECK(size % kRungUnitBytes == 0);
      before = size;
    }
    CHECK(rungs(bracket, kRungs).empty() == bracket.closed());
  }
}

TEST_CASE("a size that comes back above one that was lost is ignored") {
  const Bracket bracket = narrow({512, 8192}, {1000, 2000, 3000}, {true, false, true});
  CHECK(bracket.passes == 1000);
  CHECK(bracket.fails == 2000);
}

}  // namespace pboxctl
