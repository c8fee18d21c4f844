#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

TEST_CASE("every target adds up squares bit for bit as the reference does") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const size_t count : test::kCounts) {
      INFO(target.name << " count " << count);
      const auto values = test::floats(count, count + 1, false);
      const double expected = reduce::reference::sum_squares(values.data(), count);
      const double sum = kernels.sum_squares(values.data(), count);
      CHECK(std::bit_cast<uint64_t>(sum) == std::bit_cast<uint64_t>(expected));
    }
  }
}

TEST_CASE("a sum of squares is not finite if and only if some element is not") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const size_t count : {1, 15, 16, 17, 129}) {
      std::vector<float> values(count, -std::numeric_limits<float>::max());
      CHECK(std::isfinite(kernels.sum_squares(values.data(), count)));
      for (size_t i = 0; i < count; ++i) {
        for (const float value : {INFINITY, -INFINITY, NAN}) {
          const float finite = std::exchange(values[i], value);
          CHECK_FALSE(std::isfinite(kernels.sum_squares(values.data(), count)));
          values[i] = finite;
        }
      }
    }
  }
}
