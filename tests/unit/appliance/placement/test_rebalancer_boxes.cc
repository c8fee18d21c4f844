// Boxes that join, leave and go on standby while a job trains.
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/unit/appliance/placement/world.h"

namespace pbox::placement::rebalancer_boxes_test {
namespace {

constexpr RebalancerOptions kExploitOnly = {.seed = 5, .explore_share = 0};

}  // namespace

TEST_CASE("a box that drains loses all its chunks at once, to boxes that stay") {
  World world(4, 4000, kExploitOnly);
  world.run(3);
  world.rebalancer.set_state(1, BoxState::kDraining);
  const std::vector<Proposal> proposals = world.run(1);
  REQUIRE(proposals.size() == 1);
  CHECK(proposals[0].kind == DecisionKind::kDrain);
  CHECK(proposals[0].moves.size() == 1000);
  CHECK(proposals[0].reason.find("b1 must lose its chunks") == 0);
  const std::vector<double> bytes = world.bytes();
  CHECK(bytes[1] == 0);
  // The rates come from four samples, with an error of a few percent.
  for (const size_t other : {0, 2, 3}) CHECK(bytes[other] == Approx(4e6 / 3).epsilon(0.05));
}

TEST_CASE("no proposal ever moves a chunk to a box that takes none") {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    INFO("seed " << seed);
    World world(5, 500, {.seed = seed, .explore_share = 0.5});
    Rng rng(seed);
    for (int i = 0; i < 600; ++i) {
      if (rng.below(20) == 0) {
        const auto box = static_cast<BoxIndex>(1 + rng.below(4));  // box 0 stays active
        world.rebalancer.set_state(box, static_cast<BoxState>(rng.below(3)));
      }
      if (rng.below(50) == 0) world.speeds[rng.below(5)] = 1e5 + 1e6 * rng.unit();
      const auto proposal = world.rebalancer.observe(world.observation());
      if (!proposal) continue;
      INFO(proposal->reason);
      for (const Move& move : proposal->moves) {
        BoxState state = world.rebalancer.boxes()[move.to].state;
        const auto& change = proposal->change;
        if (change && change->box == move.to && change->from == state) state = change->to;
        REQUIRE(state == BoxState::kActive);
        REQUIRE(world.rebalancer.box_of_chunk()[move.chunk] == move.from);
      }
      if (rng.below(10) == 0) {
        world.rebalancer.abandoned("a box was busy");
      } else {
        world.rebalancer.carried_out(proposal->stall_seconds);
      }
    }
    // Once nothing changes any more, every box that must be empty is empty.
    world.run(200);
    const std::vector<double> bytes = world.bytes();
    for (size_t box = 0; box < bytes.size(); ++box) {
      if (world.rebalancer.boxes()[box].state != BoxState::kActive) CHECK(bytes[box] == 0);
    }
    CHECK(std::accumulate(bytes.begin(), bytes.end(), 0.0) == 500e3);
  }
}

TEST_CASE("a box that joins gets its share, with its rate estimated from the measured boxes") {
  World world(2, 3000, kExploitOnly);
  for (double& speed : world.speeds) speed /= 10;  // all serve a tenth of their declared rates
  world.run(20);
  world.rebalancer.add_box(World::box(2));
  world.speeds.push_back(1e5);
  const std::vector<Proposal> proposals = world.run(1);
  REQUIRE(proposals.size() == 1);
  CHECK(proposals[0].kind == DecisionKind::kJoin);
  for (const double bytes : world.bytes()) CHECK(bytes == Approx(1e6).epsilon(0.03));
}

TEST_CASE("a standby box that becomes active gets its share") {
  World world(3, 3000, kExploitOnly);
  world.rebalancer.set_state(2, BoxState::kStandby);
  REQUIRE(world.run(1).size() == 1);
  CHECK(world.bytes()[2] == 0);
  CHECK(world.run(50).empty());
  world.rebalancer.set_state(2, BoxState::kActive);
  REQUIRE(world.run(1).size() == 1);
  CHECK(world.bytes()[2] == Approx(1e6).epsilon(0.03));
}

TEST_CASE("the last active box keeps its chunks, and the reason says what to do") {
  World world(2, 100, kExploitOnly);
  world.rebalancer.set_state(0, BoxState::kDraining);
  world.rebalancer.set_state(1, BoxState::kDraining);
  CHECK(world.run(100).empty());
  CHECK(world.rebalancer.decisions().back().reason ==
        "no box is active to take the chunks of b0, b1: activate one");
  world.rebalancer.set_state(1, BoxState::kActive);
  world.run(static_cast<int>(kTrialMax) + 1);
  CHECK(world.bytes()[0] == 0);
}

TEST_CASE("a standby box that helps is found by exploring, and stays") {
  World world(3, 3000, kExploitOnly);
  world.rebalancer.set_state(2, BoxState::kStandby);
  world.run(1);
  // A rebalancer with the same boxes and map, which explores.
  world.rebalancer = Rebalancer(world.chunk_bytes, world.rebalancer.box_of_chunk(),
                                world.rebalancer.boxes(), {.seed = 1, .explore_share = 0.5});
  world.run(1500);
  CHECK(world.rebalancer.boxes()[2].state == BoxState::kActive);
  for (const double bytes : world.bytes()) CHECK(bytes == Approx(1e6).epsilon(0.05));
}

TEST_CASE(
    "a box that drains while its chunks are on their way is not made active by their arrival") {
  World world(2, 2000, {.seed = 1, .explore_share = 0.5});
  world.rebalancer.set_state(1, BoxState::kStandby);
  world.run(1);
  std::optional<Proposal> proposal;
  while (!(proposal = world.rebalancer.observe(world.observation()))) {
  }
  REQUIRE(proposal->kind == DecisionKind::kScaleOut);
  world.rebalancer.set_state(1, BoxState::kDraining);
  world.rebalancer.carried_out(0);
  CHECK(world.rebalancer.boxes()[1].state == BoxState::kDraining);
  CHECK(world.bytes()[1] > 0);
  const std::vector<Proposal> next = world.run(1);
  REQUIRE(next.size() == 1);
  CHECK(next[0].kind == DecisionKind::kDrain);
  CHECK(world.bytes()[1] == 0);
}

TEST_CASE("a box that leaves for good while its standby is on trial gets nothing back") {
  World world(3, 3000, {.seed = 1, .explore_share = 0.5});
  std::optional<Proposal> proposal;
  while (!proposal || proposal->kind != DecisionKind::kScaleIn) {
    proposal = world.rebalancer.observe(world.observation());
    if (proposal) world.rebalancer.carried_out(0);
  }
  const BoxIndex box = proposal->change->box;
  REQUIRE(world.bytes()[box] == 0);
  world.rebalancer.set_state(box, BoxState::kDraining);
  for (const Proposal& later : world.run(200)) {
    for (const Move& move : later.moves) REQUIRE(move.to != box);
  }
  CHECK(world.rebalancer.decision_count(DecisionKind::kKeep) >= 1);
}

TEST_CASE("a drain that was not carried out is proposed again after a pause") {
  World world(2, 100, kExploitOnly);
  world.rebalancer.set_state(0, BoxState::kDraining);
  REQUIRE(world.rebalancer.observe(world.observation()));
  world.rebalancer.abandoned("b0 did not answer");
  CHECK(world.rebalancer.decisions().back().reason ==
        "drain was not carried out: b0 did not answer");
  CHECK(world.bytes()[0] > 0);
  CHECK(world.run(kTrialMax).empty());
  CHECK(world.run(1).size() == 1);
  CHECK(world.bytes()[0] == 0);
}

}  // namespace pbox::placement::rebalancer_boxes_test
