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

TEST_CASE("a peer that connects anew for each message gets no more than its share either") {
  SourceDebts debts;
  uint64_t now_ns = kNanosPerSecond, worked_ns = 0;
  const uint64_t begin_ns = now_ns;
  while (now_ns < begin_ns + 10 * kNanosPerSecond) {
    ConnectionBudget budget(debts, "peer", now_ns);
    now_ns = std::max(now_ns, budget.heard_at_ns(now_ns)) + 900'000;  // less than a burst
    worked_ns += 900'000;
    const bool ends_first = worked_ns % 1'800'000 == 0;  // the message ends its connection
    if (ends_first) budget.end(now_ns);
    budget.charge(now_ns, 900'000);
    if (!ends_first) budget.end(now_ns);
  }
  CHECK(worked_ns <= (now_ns - begin_ns) / WorkBudget::kShare + 4 * WorkBudget::kBurstNs);
  CHECK(worked_ns >= (now_ns - begin_ns) / WorkBudget::kShare / 2);
}

TEST_CASE("connections that a source has already, and other sources, do not pay for its debts") {
  SourceDebts debts;
  uint64_t now_ns = kNanosPerSecond;
  ConnectionBudget former(debts, "peer", now_ns);
  ConnectionBudget costly(debts, "peer", now_ns);
  now_ns += kNanosPerSecond;
  costly.charge(now_ns, kNanosPerSecond);
  costly.end(now_ns);
  CHECK(former.heard_at_ns(now_ns) <= now_ns);
  CHECK(ConnectionBudget(debts, "other", now_ns).heard_at_ns(now_ns) <= now_ns);
  ConnectionBudget first(debts, "peer", now_ns), second(debts, "peer", now_ns);
  const uint64_t heard_at_ns = first.heard_at_ns(now_ns);
  CHECK(heard_at_ns == now_ns + WorkBudget::kPauseMaxNs);
  CHECK(second.heard_at_ns(now_ns) == heard_at_ns);
  // They take turns: what one spends delays the other.
  first.charge(heard_at_ns, kNanosPerMilli);
  CHECK(second.heard_at_ns(heard_at_ns) == heard_at_ns + WorkBudget::kShare * kNanosPerMilli);
  const uint64_t paid_ns = heard_at_ns + 3 * WorkBudget::kShare * kNanosPerMilli;
  CHECK(second.heard_at_ns(paid_ns) <= paid_ns);
  CHECK(debts.find("peer", paid_ns) == nullptr);
}

}  // namespace pbox::control
