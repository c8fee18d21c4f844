#include <catch2/catch.hpp>

#include "appliance/placement/scaling.h"

namespace pbox::placement::scaling_test {
namespace {

using Catch::Contains;
using Kind = ScaleDecision::Kind;

constexpr double kAfter = 10;
constexpr ScaleRules kRules{.out_above = 0.8, .in_below = 0.5, .boxes_min = 1, .after_s = kAfter};

ScaledBox box(const std::string& name, double memory_used, uint64_t parts = 4) {
  return {.name = name, .parts = parts, .memory_bytes = 100, .memory_used_bytes = memory_used};
}

ScaledBox standby(const std::string& name) {
  ScaledBox box = scaling_test::box(name, 0, 0);
  box.takes_parts = false;
  box.is_standby = true;
  return box;
}

struct Made {
  double at_s = 0;
  ScaleDecision decision;
};

// Steps once a second, from `from_s` to before `to_s`, and returns what was decided.
std::vector<Made> run(ScalePolicy& policy, const std::vector<ScaledBox>& boxes, double from_s,
                      double to_s) {
  std::vector<Made> made;
  for (double at = from_s; at < to_s; ++at) {
    if (const auto decision = policy.step(boxes, at)) made.push_back({at, *decision});
  }
  return made;
}

}  // namespace

TEST_CASE("boxes that are fuller than the threshold for long enough need another one") {
  ScalePolicy policy(kRules);
  const std::vector<ScaledBox> full = {box("a", 95), box("b", 75)};
  CHECK(run(policy, full, 0, kAfter).empty());
  CHECK(policy.pressure() == Approx(0.85));
  const auto made = run(policy, full, kAfter, kAfter + 1);
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.kind == Kind::kAskForBox);
  CHECK_THAT(made[0].decision.reason, Contains("85 %") && Contains("80 %"));
}

TEST_CASE("a box that misses a report while another is asked for is not taken for the new one") {
  ScalePolicy policy(kRules);
  std::vector<ScaledBox> boxes = {box("a", 95), box("b", 95)};
  boxes[1].has_reported = false;
  CHECK(run(policy, boxes, 0, kAfter).empty());
  REQUIRE(run(policy, boxes, kAfter, kAfter + 1).size() == 1);
  boxes[1].has_reported = true;
  CHECK(run(policy, boxes, kAfter + 1, 10 * kAfter).empty());
  // The box that was asked for registers, and takes parts.
  boxes.push_back(box("c", 95));
  CHECK(run(policy, boxes, 10 * kAfter, 12 * kAfter).size() == 1);
}

TEST_CASE("a box without parts is emptied before one that has copies of others' parts") {
  ScalePolicy policy(kRules);
  const std::vector<ScaledBox> boxes = {box("a", 10, 4), box("b", 10, 0), box("c", 0, 0)};
  const auto made = run(policy, boxes, 0, kAfter + 1);
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.box == "c");
}

TEST_CASE("a peak that passes needs no box") {
  ScalePolicy policy(kRules);
  for (double at = 0; at < 100; at += kAfter) {
    CHECK(run(policy, {box("a", 95)}, at, at + kAfter - 1).empty());
    CHECK(run(policy, {box("a", 70)}, at + kAfter - 1, at + kAfter).empty());
  }
}

TEST_CASE("links count as memory does, and boxes whose links are unknown do not dilute them") {
  ScalePolicy policy(kRules);
  ScaledBox busy = box("a", 10);
  busy.link_bytes_per_s = 1'000;
  busy.traffic_bytes_per_s = 900;
  const auto made = run(policy, {busy, box("b", 10)}, 0, kAfter + 1);
  CHECK(policy.pressure() == Approx(0.9));
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.kind == Kind::kAskForBox);
}

TEST_CASE("a standby is used before a box is asked for") {
  ScalePolicy policy(kRules);
  const auto made = run(policy, {box("a", 95), standby("c")}, 0, kAfter + 1);
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.kind == Kind::kUseStandby);
  CHECK(made[0].decision.box == "c");
}

TEST_CASE("a refusal counts at once, and once") {
  ScalePolicy policy(kRules);
  ScaledBox a = box("a", 60);
  a.refusals = 5;  // from before this box led
  CHECK(run(policy, {a}, 0, 3).empty());
  a.refusals = 6;
  const auto made = run(policy, {a, standby("c")}, 3, 100);
  REQUIRE(made.size() == 1);
  CHECK(made[0].at_s == 3);
  CHECK(made[0].decision.kind == Kind::kUseStandby);
  CHECK_THAT(made[0].decision.reason, Contains("no room"));

  a.refusals = 1;  // box a has started again
  CHECK(run(policy, {a, standby("c")}, 100, 200).empty());
}

TEST_CASE("a box that was asked for is used when it comes, and asked for again if it does not") {
  ScalePolicy policy(kRules);
  const auto asked = run(policy, {box("a", 95)}, 0, kAfter + 1);
  REQUIRE(asked.size() == 1);
  SECTION("it comes, as a standby, and the need has gone") {
    const auto made = run(policy, {box("a", 10), standby("c")}, 12, 13);
    REQUIRE(made.size() == 1);
    CHECK(made[0].decision.kind == Kind::kUseStandby);
    CHECK(made[0].decision.box == "c");
  }
  SECTION("it does not come") {
    const auto made = run(policy, {box("a", 95)}, 12, 12 + 10 * kAfter);
    REQUIRE(made.size() == 1);
    CHECK(made[0].decision.kind == Kind::kAskForBox);
    CHECK(made[0].at_s >= 10 * kAfter);
  }
}

TEST_CASE("a box that the others can replace is emptied, the one with the fewest parts") {
  ScalePolicy policy(kRules);
  ScaledBox leader = box("c", 20, 2);
  leader.leads = true;
  const std::vector<ScaledBox> boxes = {box("a", 20, 4), box("b", 20, 2), leader};
  CHECK(run(policy, boxes, 0, kAfter).empty());
  const auto made = run(policy, boxes, kAfter, kAfter + 1);
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.kind == Kind::kEmpty);
  CHECK(made[0].decision.box == "b");
  CHECK_THAT(made[0].decision.reason, Contains("30 %"));
}

TEST_CASE("a box is emptied by the share that the others would use, not by what they use now") {
  ScalePolicy policy(kRules);
  // 40 % in use now, 60 % without one of them.
  CHECK(run(policy, {box("a", 40), box("b", 40), box("c", 40)}, 0, 100).empty());
}

TEST_CASE("the fewest boxes stay, and are asked for") {
  ScaleRules rules = kRules;
  rules.boxes_min = 2;
  ScalePolicy policy(rules);
  CHECK(run(policy, {box("a", 1), box("b", 1)}, 0, 100).empty());
  const auto made = run(policy, {box("a", 1)}, 100, 101 + kAfter);
  REQUIRE(made.size() == 1);
  CHECK(made[0].decision.kind == Kind::kAskForBox);
  CHECK_THAT(made[0].decision.reason, Contains("fewer than 2"));
}

TEST_CASE("any constant load comes to rest: no box is emptied and used in turns") {
  for (double load = 0; load <= 400; load += 5) {
    ScalePolicy policy(kRules);
    size_t taking = 2, changes = 0;
    const size_t there = 5;
    double rest_since = 0;
    for (double at = 0; at < 1'000; ++at) {
      std::vector<ScaledBox> boxes;
      for (size_t index = 0; index < there; ++index) {
        const std::string name(1, static_cast<char>('a' + index));
        boxes.push_back(
            index < taking
                ? box(name, std::min(100.0, load / static_cast<double>(taking)), there - index)
                : standby(name));
      }
      const auto decision = policy.step(boxes, at);
      if (!decision) continue;
      if (decision->kind == Kind::kUseStandby) ++taking;
      if (decision->kind == Kind::kEmpty) --taking;
      ++changes;
      rest_since = at;
    }
    INFO("load " << load << ", " << taking << " boxes take parts");
    CHECK(changes <= 3);
    CHECK(rest_since < 100);
    CHECK((load / static_cast<double>(taking) <= 80 || taking == there));
  }
}

}  // namespace pbox::placement::scaling_test
