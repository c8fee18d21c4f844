#include <catch2/catch.hpp>

#include "worker/protocol/rtt_estimator.h"

namespace pbox::worker {

TEST_CASE("before the first sample the time-out is the larger of the initial one and the floor") {
  const RttEstimator rtt;
  CHECK(rtt.timeout_ns(2'000'000) == RttEstimator::kInitialNs);
  CHECK(rtt.timeout_ns(50'000'000) == 50'000'000);
}

TEST_CASE("the first sample sets mean and half of it as variation, as RFC 6298 says") {
  RttEstimator rtt;
  rtt.sample(8'000'000);
  CHECK(rtt.smoothed_ns() == 8'000'000);
  CHECK(rtt.timeout_ns(0) == 8'000'000 + 4 * 4'000'000);
}

TEST_CASE("later samples move the mean by an eighth and the variation by a quarter") {
  RttEstimator rtt;
  rtt.sample(8'000'000);
  rtt.sample(16'000'000);  // error 8 ms: mean 9 ms, variation 4 + (8 - 4) / 4 = 5 ms
  CHECK(rtt.smoothed_ns() == 9'000'000);
  CHECK(rtt.timeout_ns(0) == 9'000'000 + 4 * 5'000'000);
  rtt.sample(1'000'000);  // error -8 ms: mean 8 ms, variation 5 + (8 - 5) / 4 = 5.75 ms
  CHECK(rtt.smoothed_ns() == 8'000'000);
  CHECK(rtt.timeout_ns(0) == 8'000'000 + 4 * 5'750'000);
}

TEST_CASE("a steady path converges to its own time and never goes below the floor") {
  RttEstimator rtt;
  for (int count = 0; count < 200; ++count) rtt.sample(1'000'000);
  CHECK(rtt.smoothed_ns() == 1'000'000);
  CHECK(rtt.timeout_ns(0) < 1'010'000);
  CHECK(rtt.timeout_ns(2'000'000) == 2'000'000);
}

TEST_CASE("no sample makes the time-out longer than its cap") {
  RttEstimator rtt;
  rtt.sample(3'600'000'000'000);
  CHECK(rtt.timeout_ns(2'000'000) == RttEstimator::kCapNs);
}

}  // namespace pbox::worker
