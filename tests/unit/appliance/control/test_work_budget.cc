#include <catch2/catch.hpp>

#include "appliance/control/work_budget.h"

namespace pbox::control {

TEST_CASE("a peer whose messages take little time is never paused") {
  WorkBudget budget;
  for (uint64_t now_ns = 0; now_ns < kNanosPerSecond; now_ns += 100'000) {
    budget.charge(now_ns, 20'000);
    REQUIRE(budget.pause_ns() == 0);
  }
}

TEST_CASE("in the long run a peer gets its share of the time, however much it asks for") {
  WorkBudget budget;
  uint64_t now_ns = 0, worked_ns = 0;
  while (now_ns < 10 * kNanosPerSecond) {
    now_ns += 300'000;
    worked_ns += 300'000;
    budget.charge(now_ns, 300'000);
    now_ns += budget.pause_ns();
  }
  CHECK(worked_ns <= now_ns / WorkBudget::kShare + 2 * WorkBudget::kBurstNs);
  CHECK(worked_ns >= now_ns / WorkBudget::kShare / 2);
}

TEST_CASE("a message that takes very long pauses its peer for a bounded time") {
  WorkBudget budget;
  budget.charge(20 * kNanosPerSecond, 20 * kNanosPerSecond);
  CHECK(budget.pause_ns() == WorkBudget::kPauseMaxNs);
  budget.charge(21 * kNanosPerSecond, 0);
  CHECK(budget.pause_ns() == 0);
}

}  // namespace pbox::control
