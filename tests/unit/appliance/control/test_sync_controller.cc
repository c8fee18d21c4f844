// The controller of adaptive tensors: what it decides from what it sees.
#include <catch2/catch.hpp>

#include "appliance/control/sync_controller.h"

namespace pbox::control {
namespace {

using Catch::Contains;
using wire::Release;
using wire::SyncSpec;

constexpr uint64_t kReaders = 8;
constexpr uint64_t kWindowNs = 100'000'000;

SyncSpec bounds(const char* text) {
  return *wire::parse_sync_text(text);
}

// A part whose ranks behave as a test says, one window after the other.
struct Part {
  explicit Part(const char* text) : controller(bounds(text), kReaders) {
    controller.observe(counts, now_ns);
  }

  // Every reader reads as often as a window needs. Returns whether the rule has changed.
  bool pass(double waited, double lead, double delayed = 0.5) {
    constexpr uint64_t kReads = kReaders * SyncController::kReadsPerWindow;
    counts.reads += kReads;
    counts.delayed += static_cast<uint64_t>(delayed * kReads);
    counts.lead_sum += static_cast<uint64_t>(lead * kReads);
    counts.parked_ns += static_cast<uint64_t>(waited * kWindowNs * kReaders);
    return controller.observe(counts, now_ns += kWindowNs);
  }
  const SyncSpec& rule() const { return controller.rule(); }

  SyncCounts counts;
  uint64_t now_ns = 1'000;
  SyncController controller;
};

}  // namespace

TEST_CASE("a controller begins with the tightest rule, and keeps it while nobody waits") {
  Part part("adaptive:2-8:0.1");
  CHECK(wire::sync_text(part.rule()) == "pssp:2:1");
  for (int window = 0; window < 20; ++window) CHECK_FALSE(part.pass(0, 0.5, 0));
  CHECK(part.controller.decisions_made() == 0);
  CHECK(part.controller.window().lead == 0.5);
}

TEST_CASE("staleness grows while ranks wait and it helps, up to the most") {
  Part part("adaptive:0-6:1");
  std::vector<uint32_t> staleness;
  for (const double waited : {0.5, 0.3, 0.2, 0.14, 0.1, 0.07}) {
    part.pass(waited, 2);
    staleness.push_back(part.rule().staleness);
  }
  CHECK(staleness == std::vector<uint32_t>{1, 2, 3, 4, 6, 6});
  CHECK(part.rule().probability == 1);
}

TEST_CASE("beside a rank that stays slow the probability falls, since staleness does not help") {
  Part part("adaptive:1-64:0.1");
  REQUIRE(part.pass(0.5, 1));
  CHECK(part.rule().staleness == 2);
  REQUIRE(part.pass(0.5, 2));
  CHECK(part.rule().staleness == 2);
  CHECK(part.rule().probability == 0.5f);
  CHECK_THAT(part.controller.decisions().back().why,
             Contains("ranks waited 50% of the time, 2.0 rounds ahead") &&
                 Contains("probability 0.5, was 1; more staleness has not helped"));
  REQUIRE(part.pass(0.3, 2));
  CHECK(part.rule().probability == 0.25f);
  part.pass(0.3, 2);
  REQUIRE(part.pass(0.3, 2));
  CHECK(part.rule().probability == 0.1f);  // the least that the user allows
  CHECK_FALSE(part.pass(0.3, 2));
}

TEST_CASE("a loosened rule is tightened once ranks have hardly waited for several windows") {
  Part part("adaptive:1-4:0.25");
  part.pass(0.5, 1);
  part.pass(0.5, 2);
  REQUIRE(wire::sync_text(part.rule()) == "pssp:2:0.5");
  for (uint32_t window = 1; window < SyncController::kCalmWindows; ++window) {
    CHECK_FALSE(part.pass(0, 0.5, 0));
  }
  REQUIRE(part.pass(0, 0.5, 0));
  CHECK(part.rule().probability == 1);
  for (uint32_t window = 0; window < SyncController::kCalmWindows; ++window) {
    part.pass(0, 0.5, 0);
  }
  CHECK(part.rule().staleness == 1);
  for (int window = 0; window < 20; ++window) CHECK_FALSE(part.pass(0, 0.5, 0));
}

TEST_CASE("a lead that ranks use is not taken away, although they do not wait") {
  Part part("adaptive:0-4:1");
  part.pass(0.5, 1);
  part.pass(0.3, 1);
  REQUIRE(part.rule().staleness == 2);
  for (int window = 0; window < 20; ++window) CHECK_FALSE(part.pass(0, 1.5, 0));
}

TEST_CASE("release is lazy where pauses are exceptions, and soft beside a rank that stays slow") {
  Part part("adaptive:4-8:1");
  REQUIRE(part.pass(0.03, 1, 0.1));
  CHECK(part.rule().release == Release::kLazy);
  CHECK_THAT(part.controller.decisions().back().why, Contains("release lazy, was soft"));
  REQUIRE(part.pass(0.03, 3.5, 0.5));
  CHECK(part.rule().release == Release::kSoft);
}

TEST_CASE("a window lasts until every reader has read several times, or for its longest") {
  SyncController controller(bounds("adaptive:1-8"), kReaders);
  SyncCounts counts;
  controller.observe(counts, 1'000);
  counts.reads = kReaders * SyncController::kReadsPerWindow - 1;
  counts.parked_ns = 8 * SyncController::kWindowMaxNs;
  CHECK_FALSE(controller.observe(counts, 1'000 + kWindowNs));
  CHECK(controller.window().waited == 0);
  CHECK(controller.observe(counts, 1'000 + SyncController::kWindowMaxNs));
  CHECK(controller.window().waited == 1);
}

TEST_CASE("a job that does nothing leaves the rule alone") {
  SyncController controller(bounds("adaptive:1-8"), kReaders);
  for (uint64_t second = 0; second < 100; ++second) {
    CHECK_FALSE(controller.observe({}, second * SyncController::kWindowMaxNs + 1));
  }
}

TEST_CASE("a tensor with tighter bounds has the rule within them") {
  Part part("adaptive:0-8:0.1");
  for (int window = 0; window < 10; ++window) part.pass(0.9, 4);
  CHECK(part.rule().probability == 0.1f);
  const SyncSpec own = part.controller.rule_within(bounds("adaptive:3-3:0.5"));
  CHECK(own.staleness == 3);
  CHECK(own.probability == 0.5f);
  CHECK(part.controller.decisions().size() <= SyncController::kDecisionsKept);
}

}  // namespace pbox::control
