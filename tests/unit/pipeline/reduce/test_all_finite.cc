#include <catch2/catch.hpp>
#include <limits>

#include "pipeline/reduce/reduce.h"
#include "tests/unit/pipeline/reduce/inputs.h"

using namespace pbox;

TEST_CASE("all_finite finds an infinity or NaN wherever it lies") {
  constexpr uint32_t kNotFinite[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001};
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    for (const size_t count : {1, 7, 16, 31, 32, 33, 100, 129}) {
      INFO(target.name << " count " << count);
      test::Array<float> values(count);
      for (size_t i = 0; i < count; ++i) values[i] = -std::numeric_limits<float>::max();
      CHECK(kernels.all_finite(values.data(), count));
      for (size_t i = 0; i < count; ++i) {
        const float finite = values[i];
        values[i] = std::bit_cast<float>(kNotFinite[i % std::size(kNotFinite)]);
        CHECK_FALSE(kernels.all_finite(values.data(), count));
        values[i] = finite;
      }
    }
  }
}

TEST_CASE("all_finite is true for denormals, zeros and empty arrays") {
  for (const auto& target : reduce::supported_targets()) {
    const reduce::Kernels kernels = reduce::kernels_for(target.target);
    CHECK(kernels.all_finite(nullptr, 0));
    test::Array<float> values(33);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (i % 2 != 0) ? -0.0f : 0x1.0p-149f;
    CHECK(kernels.all_finite(values.data(), values.size()));
  }
}
