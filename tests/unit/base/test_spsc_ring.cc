#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>

#include "base/spsc_ring.h"

namespace pbox {
namespace {

TEST_CASE("a ring gives values back in the order they went in") {
  SpscRing<int> ring(4);
  REQUIRE(ring.push(1));
  REQUIRE(ring.push(2));
  int value = 0;
  REQUIRE(ring.pop(value));
  CHECK(value == 1);
  REQUIRE(ring.pop(value));
  CHECK(value == 2);
}

TEST_CASE("a full ring refuses a value and keeps what it holds") {
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

TEST_CASE("an empty ring gives nothing and leaves the target untouched") {
  SpscRing<int> ring(1);
  int value = 7;
  CHECK(ring.empty());
  CHECK_FALSE(ring.pop(value));
  CHECK(value == 7);
  REQUIRE(ring.push(1));
  CHECK_FALSE(ring.empty());
}

// Two words that must agree: a value read before it was wholly written shows. Under the thread
// sanitizer this is also the proof that the indices order the slots.
struct Pair {
  uint64_t number = 0;
  uint64_t complement = 0;
};

TEST_CASE("two threads pass every value once, whole and in order") {
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
