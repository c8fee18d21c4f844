#include <catch2/catch.hpp>

#include "pipeline/reduce/reduce.h"
#include "pipeline/reduce/reference.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

TEST_CASE("scale equals the reference on every target") {
  for (const auto& target : reduce::supported_targets()) {
    for (const size_t count : test::kCounts) {
      for (const float factor : {1.0f / 3.0f, 0.0f, -1.0f, 0x1.0p-130f, 0x1.0p100f}) {
        INFO(target.name << " count " << count << " factor " << factor);
        const std::vector<float> values = test::floats(count, 5 + count, true);
        test::Array<float> expected(count), actual(count);
        for (size_t i = 0; i < count; ++i) expected[i] = actual[i] = values[i];
        reduce::reference::scale(expected.data(), factor, count);
        reduce::kernels_for(target.target).scale(actual.data(), factor, count);
        CHECK(test::bits(actual.data(), count) == test::bits(expected.data(), count));
      }
    }
  }
}

TEST_CASE("scale by one over the number of workers turns a sum into a mean") {
  float values[] = {8.0f, -4.0f, 0.0f};
  reduce::scale(values, 0.25f, 3);
  CHECK(values[0] == 2.0f);
  CHECK(values[1] == -1.0f);
  CHECK(values[2] == 0.0f);
}
