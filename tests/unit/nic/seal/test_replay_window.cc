// The replay window, against a set of all numbers that were ever taken.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "nic/seal/replay_window.h"

namespace pbox::test {

using seal::ReplayWindow;

TEST_CASE("a packet number is taken once, and not after it has left the window") {
  std::mt19937_64 random(3);
  for (int run = 0; run < 20; ++run) {
    ReplayWindow window;
    std::set<uint64_t> taken;
    uint64_t newest = 0;
    uint64_t accepted = 0, repeated = 0, late = 0;
    for (int step = 0; step < 20'000; ++step) {
      const uint64_t back = random() % (random() % 10 == 0 ? 3000 : 100);
      const uint64_t ahead = random() % (random() % 100 == 0 ? 5000 : 3);
      const uint64_t number = (newest > back ? newest - back : 0) + ahead;
      const bool is_late = number + ReplayWindow::kPackets <= newest;
      const bool is_new = number > 0 && !is_late && !taken.contains(number);
      REQUIRE(window.take(number) == is_new);
      accepted += is_new;
      late += is_late;
      repeated += !is_new && !is_late;
      if (is_new) taken.insert(number);
      newest = std::max(newest, is_new ? number : 0);
    }
    CHECK(accepted > 1000);
    CHECK(repeated > 1000);
    CHECK(late > 100);
  }
}

TEST_CASE("the window has an exact edge, at every position of its words") {
  for (uint64_t newest = 2000; newest < 2200; ++newest) {
    ReplayWindow window;
    REQUIRE(window.take(newest));
    CHECK_FALSE(window.take(newest - ReplayWindow::kPackets));
    CHECK(window.take(newest - ReplayWindow::kPackets + 1));
    CHECK_FALSE(window.take(newest - ReplayWindow::kPackets + 1));
  }
  ReplayWindow window;
  CHECK_FALSE(window.take(0));
  CHECK(window.take(UINT64_MAX));
  CHECK_FALSE(window.take(UINT64_MAX));
  CHECK(window.take(UINT64_MAX - ReplayWindow::kPackets + 1));
  CHECK_FALSE(window.take(5));
}

}  // namespace pbox::test
