#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/unit/appliance/placement/world.h"

namespace pbox::placement::rebalancer_test {
namespace {

constexpr RebalancerOptions kExploitOnly = {.seed = 5, .explore_share = 0};

size_t count_of(const std::vector<Proposal>& proposals, DecisionKind kind) {
  return static_cast<size_t>(
      std::count_if(proposals.begin(), proposals.end(),
                    [&](const Proposal& proposal) { return proposal.kind == kind; }));
}

}  // namespace

TEST_CASE("a box at a quarter of its speed ends with a quarter of the others' share") {
  World world(4, 4000, kExploitOnly);
  world.speeds[2] /= 4;
  const std::vector<Proposal> proposals = world.run(400);
  REQUIRE(count_of(proposals, DecisionKind::kExploit) >= 1);
  CHECK(count_of(proposals, DecisionKind::kRevert) == 0);
  const std::vector<double> bytes = world.bytes();
  for (const size_t other : {0, 1, 3}) {
    CHECK(bytes[2] / bytes[other] == Approx(0.25).margin(0.02));
  }
}

TEST_CASE("equal boxes with noise are left alone") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const double noise : {0.0, 0.02, 0.1, 0.3}) {
      INFO("noise " << noise << ", seed " << seed);
      World world(8, 800, kExploitOnly, noise);
      world.rng = Rng(seed);
      CHECK(world.run(2000).empty());
    }
  }
}

TEST_CASE("a large difference is decided after a few observations, a small one after many") {
  std::vector<size_t> needed;
  for (const double slowdown : {4.0, 1.5, 1.15}) {
    World world(4, 4000, kExploitOnly, 0.1);
    world.speeds[2] /= slowdown;
    size_t observations = 1;
    while (!world.rebalancer.observe(world.observation())) REQUIRE(++observations < 200);
    needed.push_back(observations);
  }
  CHECK(needed[0] <= 6);
  CHECK(needed[1] > needed[0]);
  CHECK(needed[2] > needed[1]);

  World exact(4, 4000, kExploitOnly, 0);
  exact.speeds[2] /= 4;
  CHECK(exact.run(2).empty());
  CHECK(exact.run(1).size() == 1);
}

TEST_CASE("explorations of equal boxes are all undone, and cost no more than their share") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    World world(4, 4000, {.seed = seed, .explore_share = 0.05});
    const std::vector<double> before = world.bytes();
    double seconds = 0;
    double stalls = 0;
    size_t explorations = 0;
    for (int i = 0; i < 4000 || world.rebalancer.is_judging(); ++i) {
      const Observation seen = world.observation();
      seconds += seen.iteration_seconds;
      const auto proposal = world.rebalancer.observe(seen);
      if (!proposal) continue;
      explorations += proposal->kind != DecisionKind::kRevert;
      stalls += proposal->stall_seconds;
      world.rebalancer.carried_out(proposal->stall_seconds);
    }
    CHECK(explorations >= 3);
    CHECK(world.rebalancer.decision_count(DecisionKind::kRevert) == explorations);
    CHECK(world.rebalancer.decision_count(DecisionKind::kExploit) == 0);
    CHECK(world.bytes() == before);
    // An iteration without explorations takes 1 s, and up to 3 % more by the noise.
    CHECK(seconds + stalls < 4000 * 1.03 * 1.06);
  }
}

TEST_CASE("an exploration that changes nothing is undone") {
  World world(4, 400, {.seed = 6, .explore_share = 0.5});
  const std::vector<BoxIndex> before = world.rebalancer.box_of_chunk();
  for (int i = 0; i < 500 || world.rebalancer.is_judging(); ++i) {
    Observation seen = world.observation();
    seen.iteration_seconds = 1;  // the ranks compute for this long, whatever the boxes do
    if (world.rebalancer.observe(seen)) world.rebalancer.carried_out(0);
  }
  CHECK(world.rebalancer.decision_count(DecisionKind::kRevert) >= 2);
  CHECK(world.rebalancer.decision_count(DecisionKind::kKeep) == 0);
  CHECK(world.rebalancer.box_of_chunk() == before);
}

TEST_CASE(
    "a bad exploration ends as soon as it is clearly slower, by reversing exactly its moves") {
  World world(4, 4000, {.seed = 2, .explore_share = 0.5});
  std::optional<Proposal> exploration;
  while (!(exploration = world.rebalancer.observe(world.observation()))) {
  }
  const std::vector<BoxIndex> before = world.rebalancer.box_of_chunk();
  world.rebalancer.carried_out(0);
  REQUIRE(world.rebalancer.box_of_chunk() != before);
  std::optional<Proposal> back;
  size_t trial = 0;
  while (!back) {
    back = world.rebalancer.observe(world.observation());
    ++trial;
  }
  CHECK(trial < kTrialMax);
  CHECK(back->kind == DecisionKind::kRevert);
  CHECK(back->moves.size() == exploration->moves.size());
  world.rebalancer.carried_out(0);
  CHECK(world.rebalancer.box_of_chunk() == before);
}

TEST_CASE("an exploit that slowed the job down is undone, and the next one needs more evidence") {
  World world(2, 2000, kExploitOnly, 0.01);
  const std::vector<BoxIndex> before = world.rebalancer.box_of_chunk();
  std::vector<int> samples;  // by exploit
  int since = 0;             // observations since the map last changed
  for (int i = 0; samples.size() < 5 || world.rebalancer.box_of_chunk() != before; ++i) {
    REQUIRE(i < 2000);
    // Box 0 is the busiest, yet the job slows down as the chunks become more unevenly distributed.
    Observation seen = world.observation();
    const double spread = std::abs(seen.boxes[0].bytes - seen.boxes[1].bytes);
    seen.iteration_seconds = 3 + spread * 1e-6 + seen.boxes[1].busy_seconds * 1e-3;
    seen.boxes[0].busy_seconds *= 2;
    ++since;
    const auto proposal = world.rebalancer.observe(seen);
    if (!proposal) continue;
    if (proposal->kind == DecisionKind::kExploit) samples.push_back(since);
    world.rebalancer.carried_out(0.01);
    since = 0;
  }
  CHECK(samples[0] < 6);
  CHECK(samples[1] >= 6);
  CHECK(samples[2] >= 12);
  CHECK(samples[4] >= static_cast<int>(kSamplesMin * kPatienceMax));
  CHECK(world.rebalancer.decision_count(DecisionKind::kRevert) == samples.size());
}

TEST_CASE("a box that is slow for a few observations again and again is no longer followed") {
  World world(3, 300, kExploitOnly);
  std::vector<int> exploits_at;
  for (int i = 0; i < 1200; ++i) {
    world.speeds[1] = i % 40 < 5 ? 2.5e5 : 1e6;
    const auto proposal = world.rebalancer.observe(world.observation());
    if (!proposal) continue;
    exploits_at.push_back(i);
    world.rebalancer.carried_out(0.01);
  }
  REQUIRE_FALSE(exploits_at.empty());
  CHECK(exploits_at.back() < 300);
}

TEST_CASE("the cost of a migration is weighed against its gain") {
  World cheap(2, 2000, kExploitOnly);
  cheap.speeds[0] *= 0.8;
  CHECK(cheap.run(100).size() == 1);

  World dear(2, 2000, kExploitOnly);
  dear.speeds[0] *= 0.5;
  // The first migration takes 10,000 times as long as its bytes suggest, so there is no second one.
  std::optional<Proposal> first;
  while (!(first = dear.rebalancer.observe(dear.observation()))) {
  }
  dear.rebalancer.carried_out(10'000 * first->stall_seconds);
  dear.speeds[0] *= 2;
  CHECK(dear.run(500).empty());
  CHECK(dear.rebalancer.decisions().back().reason.find("not earned back") != std::string::npos);
}

TEST_CASE("explorations that would cost more than they can gain are not made") {
  World world(4, 4000, {.seed = 1, .explore_share = 0.5});
  std::optional<Proposal> first;
  while (!(first = world.rebalancer.observe(world.observation()))) {
  }
  world.rebalancer.carried_out(10'000 * first->stall_seconds);
  // The first exploration is undone. After that, each exploration that is considered ends in a
  // hold.
  const std::vector<Proposal> proposals = world.run(1000);
  REQUIRE(proposals.size() == 1);
  CHECK(proposals[0].kind == DecisionKind::kRevert);
}

TEST_CASE("while a proposal is being carried out, nothing else is proposed") {
  World world(4, 4000, kExploitOnly);
  world.speeds[0] /= 4;
  while (!world.rebalancer.observe(world.observation())) {
  }
  world.rebalancer.set_state(1, BoxState::kDraining);
  for (int i = 0; i < 100; ++i) REQUIRE_FALSE(world.rebalancer.observe(world.observation()));
  world.rebalancer.carried_out(0.01);
  const auto next = world.rebalancer.observe(world.observation());
  REQUIRE(next);
  CHECK(next->kind == DecisionKind::kDrain);
}

TEST_CASE("boxes that the job does not wait for keep their chunks") {
  World world(2, 2000, kExploitOnly);
  world.speeds[0] /= 3;
  for (int i = 0; i < 300; ++i) {
    Observation seen = world.observation();
    seen.iteration_seconds = 100;  // the ranks compute for this long
    REQUIRE_FALSE(world.rebalancer.observe(seen));
  }
  CHECK(world.rebalancer.decisions().back().reason.find("too little") != std::string::npos);
}

TEST_CASE("equal seeds give equal proposals, different seeds different ones") {
  const auto plans_of = [](uint64_t seed) {
    World world(5, 1000, {.seed = seed, .explore_share = 0.5});
    std::vector<std::string> reasons;
    for (const Proposal& proposal : world.run(800)) reasons.push_back(proposal.reason);
    return reasons;
  };
  CHECK(plans_of(1) == plans_of(1));
  CHECK(plans_of(1) != plans_of(2));
}

TEST_CASE("impossible observations are counted and change nothing") {
  World world(2, 100, kExploitOnly);
  const auto refused = [&](auto spoil) {
    Observation seen = world.observation();
    spoil(seen);
    const uint64_t ignored = world.rebalancer.observations_ignored();
    CHECK_FALSE(world.rebalancer.observe(seen));
    CHECK(world.rebalancer.observations_ignored() == ignored + 1);
  };
  refused([](Observation& seen) { seen.boxes.pop_back(); });
  refused([](Observation& seen) { seen.iteration_seconds = -1; });
  refused([](Observation& seen) { seen.rounds = -1; });
  refused([](Observation& seen) { seen.boxes[1].bytes = -1; });
  refused([](Observation& seen) {
    seen.boxes[0].busy_seconds = std::numeric_limits<double>::infinity();
  });
  CHECK(world.rebalancer.bytes_per_second() == std::vector<double>{1e6, 1e6});
}

TEST_CASE("every decision is counted and has its reason") {
  World world(4, 400, {.seed = 3, .explore_share = 0.2});
  world.speeds[1] /= 2;
  world.run(1000);
  uint64_t counted = 0;
  for (size_t kind = 0; kind < kDecisionKindCount; ++kind) {
    counted += world.rebalancer.decision_count(static_cast<DecisionKind>(kind));
    CHECK(std::string(to_string(static_cast<DecisionKind>(kind))) != "?");
  }
  CHECK(counted >= world.rebalancer.decisions().size());
  CHECK(world.rebalancer.decisions().size() <= kDecisionsKept);
  for (const Decision& decision : world.rebalancer.decisions()) {
    CHECK(decision.reason.size() > 20);
  }
}

}  // namespace pbox::placement::rebalancer_test
