#include <catch2/catch.hpp>

#include "nic/coalescing.h"

namespace pbox::test {
namespace {

// Receives `packets` packets one by one, `apart_ns` apart. Returns the time of the last one.
uint64_t receive(nic::Coalescing& coalescing, uint64_t now_ns, int packets, uint64_t apart_ns) {
  for (int index = 0; index < packets; ++index) coalescing.received(1, now_ns += apart_ns);
  return now_ns;
}

constexpr uint64_t kStartNs = 5 * kNanosPerSecond;

}  // namespace

TEST_CASE("packets gather once they have come one by one for a while") {
  nic::Coalescing coalescing;
  uint64_t now_ns = receive(coalescing, kStartNs, 50, 12'000);
  CHECK_FALSE(coalescing.take_pause());  // too few to tell
  now_ns = receive(coalescing, now_ns, 100, 12'000);
  CHECK(coalescing.take_pause());
  receive(coalescing, now_ns, 1, 50'000);
  CHECK(coalescing.take_pause());
}

TEST_CASE("after a pause in vain packets are waited for") {
  nic::Coalescing coalescing;
  receive(coalescing, kStartNs, 200, 12'000);
  CHECK(coalescing.take_pause());
  CHECK_FALSE(coalescing.take_pause());
  CHECK_FALSE(coalescing.take_pause());
}

TEST_CASE("packets that are further apart than half a pause do not gather") {
  nic::Coalescing coalescing;
  const uint64_t now_ns = receive(coalescing, kStartNs, 200, 12'000);
  receive(coalescing, now_ns, 100, nic::Coalescing::kPauseNs / 2 + 1000);
  CHECK_FALSE(coalescing.take_pause());
}

TEST_CASE("the first packet after a long time does not gather") {
  nic::Coalescing coalescing;
  const uint64_t now_ns = receive(coalescing, kStartNs, 200, 12'000);
  coalescing.received(1, now_ns + kNanosPerSecond);
  CHECK_FALSE(coalescing.take_pause());
}

}  // namespace pbox::test
