#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>

#include "base/spsc_ring.h"

namespace pbox {
namespace {

TEST_CASE("a ring returns values in the order in which they were pushed") {
  SpscRing<int> ring(4);
  REQUIRE(ring.push(1));
  REQUIRE(ring.push(2));
  int value = 0;
  REQUIRE(ring.pop(value));
  CHECK(value == 1);
  REQUIRE(ring.pop(value));
  CHECK(value == 2);
}

TEST_CASE("a full ring refuses a value and keeps its contents") {
  SpscRing<int> ring(2);
  REQUIRE(ring.push(1));
  REQUIRE(ring.push(2));
  CHECK_FALSE(ring.push(3));
  int value = 0;
  REQUIRE(ring.pop(value));
  CHECK(value == 1);
  CHECK(ring.push(3));
  REQUIRE(ring.pop(value));
  CHECK(value == 2);
  REQUIRE(ring.pop(value));
  CHECK(value == 3);
}

TEST_CASE("popping an empty ring fails and does not change the target") {
  SpscRing<int> ring(1);
  int value = 7;
  CHECK(ring.empty());
  CHECK_FALSE(ring.pop(value));
  CHECK(value == 7);
  REQUIRE(ring.push(1));
  CHECK_FALSE(ring.empty());
}

// Two words that must match, so that a value read before it was completely written is detected. The
// thread sanitizer also verifies here that the indices order the accesses to the slots.
struct Pair {
  uint64_t number = 0;
  uint64_t complement = 0;
};

TEST_CASE("two threads pass every value exactly once, complete and in order") {
  constexpr uint64_t kValueCount = 200'000;
  SpscRing<Pair> ring(64);
  std::thread producer([&ring] {
    for (uint64_t number = 0; number < kValueCount;) {
      if (ring.push({number, ~number})) {
        ++number;
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t torn = 0;
  uint64_t misplaced = 0;
  for (uint64_t expected = 0; expected < kValueCount;) {
    Pair pair;
    if (!ring.pop(pair)) {
      std::this_thread::yield();
      continue;
    }
    torn += pair.complement != ~pair.number;
    misplaced += pair.number != expected;
    ++expected;
  }
  producer.join();
  CHECK(torn == 0);
  CHECK(misplaced == 0);
  CHECK(ring.empty());
}

}  // namespace
}  // namespace pbox
