#include <catch2/catch.hpp>
#include <cstring>

#include "perf/phub/hot_loop.h"

namespace pbox::perf {
namespace {

// Tensors of less than a cache line, of several chunks, and of a chunk that ends early.
const std::vector<ModelTensor> kTensors = {{"a", 3}, {"b", 20'000}, {"c", 8'192}, {"d", 1'000}};

std::vector<LoopVariant> all_variants() {
  std::vector<LoopVariant> all;
  for (const Division division : {Division::kTall, Division::kWide, Division::kWidePerPush}) {
    for (const uint32_t threads : {1, 2, 3}) {
      for (const uint64_t chunk_bytes : {0, 4 << 10, 32 << 10, 4 << 20}) {
        for (const uint32_t bypass : {0, 1, 2, 3}) {
          all.push_back({.division = division,
                         .threads = threads,
                         .chunk_bytes = chunk_bytes,
                         .sums_bypass_cache = (bypass & 1) != 0,
                         .steps_bypass_cache = (bypass & 2) != 0});
        }
      }
    }
  }
  return all;
}

TEST_CASE("however threads divide the hot loop, every sum is right and every weight the same") {
  HotLoop first(kTensors, 3, true);
  CHECK(first.count_wrong_sums() > 0);  // nothing was summed yet
  first.pass({});
  first.pass({});
  CHECK(first.count_wrong_sums() == 0);
  CHECK(first.weights()[0] != 0);
  for (const LoopVariant& variant : all_variants()) {
    INFO("division " << static_cast<int>(variant.division) << ", " << variant.threads
                     << " threads, chunks of " << variant.chunk_bytes << ", bypassing "
                     << variant.sums_bypass_cache << variant.steps_bypass_cache);
    HotLoop loop(kTensors, 3, true);
    loop.pass(variant);
    loop.pass(variant);
    REQUIRE(loop.count_wrong_sums() == 0);
    REQUIRE(std::memcmp(loop.weights().data(), first.weights().data(),
                        first.weights().size_bytes()) == 0);
  }
}

TEST_CASE("a hot loop without steps leaves the weights alone") {
  HotLoop loop(kTensors, 2, false);
  loop.pass({.threads = 2});
  CHECK(loop.count_wrong_sums() == 0);
  for (const float weight : loop.weights()) REQUIRE(weight == 0);
  // 3 floats take a cache line.
  CHECK(loop.gradient_bytes() == 2.0 * (16 + 20'000 + 8'192 + 1'008) * sizeof(float));
}

}  // namespace
}  // namespace pbox::perf
