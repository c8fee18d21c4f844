#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "nic/wire/push_weight.h"

namespace pbox::wire {

TEST_CASE("every code stands for a weight of its own, which gives the code again") {
  uint64_t before = 0;
  for (uint32_t code = 1; code < kWeightCodes; ++code) {
    const uint64_t weight = push_weight(code);
    REQUIRE(weight > before);
    REQUIRE(nearest_weight_code(static_cast<double>(weight)) == code);
    before = weight;
  }
  CHECK(before == kPushWeightMax);
  CHECK(push_weight(0) == 1);
}

TEST_CASE("whole weights up to 256 are exact, larger ones within 1/256") {
  for (uint32_t weight = 1; weight <= 256; ++weight) {
    REQUIRE(push_weight(*nearest_weight_code(weight)) == weight);
  }
  for (double weight = 1; weight < static_cast<double>(kPushWeightMax); weight *= 1.00137) {
    const auto rounded = static_cast<double>(push_weight(*nearest_weight_code(weight)));
    REQUIRE(std::abs(rounded - weight) <= std::max(0.5, weight / 256));
  }
}

TEST_CASE("a weight that no code is near to has none") {
  CHECK(nearest_weight_code(1) == 1);
  for (const double weight :
       {0.0, 0.99, -1.0, std::nan(""), HUGE_VAL, static_cast<double>(kPushWeightMax) * 1.01}) {
    CHECK(!nearest_weight_code(weight));
  }
}

TEST_CASE("a header carries a weight beside its type") {
  Header header;
  header.dtype_scale = static_cast<uint16_t>(Dtype::kBf16);
  set_weight_code(kWeightCodes - 1, header);
  CHECK(weight_code(header) == kWeightCodes - 1);
  CHECK((header.dtype_scale & 15) == static_cast<uint16_t>(Dtype::kBf16));
}

}  // namespace pbox::wire
