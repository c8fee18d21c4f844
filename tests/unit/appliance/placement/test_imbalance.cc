#include <catch2/catch.hpp>
#include <cmath>

#include "appliance/placement/confidence.h"
#include "appliance/placement/imbalance.h"
#include "base/rng.h"

namespace pbox::placement::imbalance_test {
namespace {

// Appends `count` samples of boxes that take these seconds, each with up to 3 % of noise.
void append(std::deque<Sample>& window, const std::vector<double>& seconds, size_t count,
            double noise = 0.03) {
  Rng rng(window.size() + 1);
  for (size_t i = 0; i < count; ++i) {
    Sample sample;
    for (const double one : seconds) {
      sample.log_busy.push_back(std::log(one * (1 + noise * (2 * rng.unit() - 1))));
    }
    sample.bytes.assign(seconds.size(), 1);
    window.push_back(std::move(sample));
  }
}

const std::vector<double> kEqual = {1000, 1000, 1000};
const std::vector<double> kNoSpare = {0, 0, 0};

}  // namespace

TEST_CASE("a box at a quarter of its speed is found by a few samples, with its certain gain") {
  std::deque<Sample> window;
  append(window, {0.1, 0.4, 0.1}, 2);
  CHECK_FALSE(find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01));
  append(window, {0.1, 0.4, 0.1}, 4);
  const auto found = find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01);
  REQUIRE(found);
  CHECK(found->slowest == 1);
  CHECK(found->samples <= 6);
  CHECK(found->seconds[1] == Approx(0.4).epsilon(0.03));
  CHECK(found->certain_seconds[1] < found->seconds[1]);
  // 0.4 s against 3 parts of work at a rate of 10 + 10 + 2.5 parts per second, at most.
  CHECK(found->gain_seconds > 0.05);
  CHECK(found->gain_seconds < 0.4 - 3 / 22.5 + 0.02);
}

TEST_CASE("a box that has just become slow is found although it was fast for long") {
  std::deque<Sample> window;
  append(window, {0.1, 0.1, 0.1}, 200);
  CHECK_FALSE(find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01));
  append(window, {0.1, 0.1, 0.4}, 6);
  const auto found = find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01);
  REQUIRE(found);
  CHECK(found->slowest == 2);
  CHECK(found->samples <= 6);
}

TEST_CASE("a small difference is found by many samples, whatever disturbs all boxes alike") {
  std::deque<Sample> window;
  append(window, {0.1, 0.1, 0.11}, 5);
  CHECK_FALSE(find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01));
  append(window, {0.1, 0.1, 0.11}, 40);
  for (size_t index = 0; index < window.size(); index += 3) {
    for (double& log_busy : window[index].log_busy) log_busy += 1;
  }
  const auto found = find_imbalance(window, kEqual, kNoSpare, kSamplesMin, 0.01);
  REQUIRE(found);
  CHECK(found->slowest == 2);
  CHECK(found->samples > 6);
}

TEST_CASE("fewer samples than asked for lead to nothing, and boxes without bytes do not count") {
  std::deque<Sample> window;
  append(window, {0.1, 0.4, 0.1}, 11);
  CHECK_FALSE(find_imbalance(window, kEqual, kNoSpare, 12, 0.01));
  CHECK(find_imbalance(window, kEqual, kNoSpare, 11, 0.01));
  CHECK_FALSE(
      find_imbalance(window, std::vector<double>{1000, 0, 1000}, kNoSpare, kSamplesMin, 0.01));
}

TEST_CASE("the rate of a box without bytes adds to the gain") {
  std::deque<Sample> window;
  append(window, {0.1, 0.15, 1e-6}, 30);
  const std::vector<double> bytes = {1000, 1000, 0};
  const auto alone = find_imbalance(window, bytes, kNoSpare, kSamplesMin, 0.01);
  const auto helped =
      find_imbalance(window, bytes, std::vector<double>{0, 0, 10'000}, kSamplesMin, 0.01);
  REQUIRE((alone && helped));
  CHECK(helped->gain_seconds > alone->gain_seconds + 0.02);
}

}  // namespace pbox::placement::imbalance_test
