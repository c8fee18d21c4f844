#include <catch2/catch.hpp>

#include "base/clock.h"
#include "perf/rack/delay_queue.h"

namespace pbox::test {
namespace {

using perf::DelayQueue;

std::vector<std::byte> frame_of(int number) {
  return {static_cast<std::byte>(number), static_cast<std::byte>(number >> 8)};
}

int number_of(std::span<const std::byte> frame) {
  return std::to_integer<int>(frame[0]) | std::to_integer<int>(frame[1]) << 8;
}

}  // namespace

TEST_CASE("a frame is due after the delay, and not before") {
  DelayQueue queue({.delay_ns = 50 * kNanosPerMilli}, 1);
  CHECK_FALSE(queue.due_ns());
  queue.push(frame_of(7), 1000);
  CHECK(queue.due_ns() == 50 * kNanosPerMilli + 1000);
  CHECK(queue.due(50 * kNanosPerMilli + 999, 8) == 0);
  REQUIRE(queue.due(50 * kNanosPerMilli + 1000, 8) == 1);
  CHECK(number_of(queue.frame(0)) == 7);
  queue.pop(1);
  CHECK_FALSE(queue.due_ns());
}

TEST_CASE("frames keep their order in spite of jitter, which varies their delay") {
  DelayQueue queue({.delay_ns = 1000, .jitter_ns = 5000}, 1);
  constexpr int kFrames = 500;
  for (int number = 0; number < kFrames; ++number) queue.push(frame_of(number), 10'000u * number);
  uint64_t least_ns = UINT64_MAX, most_ns = 0;
  for (int number = 0; number < kFrames; ++number) {
    REQUIRE(number_of(queue.frame(0)) == number);
    const uint64_t delay_ns = *queue.due_ns() - 10'000u * static_cast<uint64_t>(number);
    least_ns = std::min(least_ns, delay_ns);
    most_ns = std::max(most_ns, delay_ns);
    queue.pop(1);
  }
  CHECK(least_ns >= 1000);
  CHECK(least_ns < 1500);
  CHECK(most_ns > 5500);
  CHECK(most_ns <= 6000);
}

TEST_CASE("the stated share of the frames is lost") {
  DelayQueue queue({.loss = 0.1}, 1);
  for (int number = 0; number < 10'000; ++number) queue.push(frame_of(number), 0);
  const size_t left = queue.due(0, 10'000);
  CHECK(left > 8800);
  CHECK(left < 9200);
}

}  // namespace pbox::test
