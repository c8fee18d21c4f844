#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/cluster/job_balancer.h"
#include "base/rng.h"

namespace pbox::cluster {
namespace {

using placement::DecisionKind;

// A job on boxes of given speeds. An iteration lasts until the slowest box has finished. A proposed
// map is carried out at the next step. Box d has no parts at first.
class World {
 public:
  explicit World(std::map<std::string, double> parts_per_second)
      : speeds_(std::move(parts_per_second)) {
    map = {.chunk_bytes = 32'768, .bytes = 12'000'000, .may_move = true, .boxes = {}};
    for (const auto& [name, speed] : speeds_) {
      boxes.push_back({name, 0, true});
      if (name != "d") map.boxes.insert(map.boxes.end(), 4, name);
    }
  }

  size_t parts(const std::string& box) const {
    return static_cast<size_t>(std::count(map.boxes.begin(), map.boxes.end(), box));
  }
  void set_speed(const std::string& box, double speed) { speeds_[box] = speed; }

  std::map<std::string, JobLoads> loads() {
    std::map<std::string, JobLoads> all;
    double slowest = 0;
    for (const auto& [name, speed] : speeds_) {
      if (parts(name) == 0) continue;
      JobLoad& load = all[name]["train"];
      load.map_revision = revision;
      load.rounds = rounds_ += 10;
      load.bytes = 1e6 * static_cast<double>(parts(name));
      load.busy_seconds =
          static_cast<double>(parts(name)) / speed * (1 + 0.02 * (rng_.unit() - 0.5));
      slowest = std::max(slowest, load.busy_seconds);
    }
    for (auto& [name, jobs] : all) jobs["train"].iteration_seconds = slowest;
    return all;
  }

  void run(size_t steps) {
    for (size_t step = 0; step < steps; ++step) {
      const auto proposal = balancer.step(map, revision, boxes, loads(), now++);
      if (!proposal) continue;
      ++proposals;
      map = proposal->map;
      ++revision;
      balancer.committed();
    }
  }

  uint64_t count(DecisionKind kind) const {
    const auto decisions = balancer.view().decisions;
    return static_cast<uint64_t>(std::count_if(decisions.begin(), decisions.end(),
                                               [&](const auto& one) { return one.kind == kind; }));
  }

  JobBalancer balancer{"train", 3};
  PartMap map;
  int64_t revision = 7;
  uint64_t now = 1;
  size_t proposals = 0;
  std::vector<BalancedBox> boxes;

 private:
  std::map<std::string, double> speeds_;
  uint64_t rounds_ = 0;
  Rng rng_{5};
};

}  // namespace

TEST_CASE("a slow box loses parts to the others; this is kept and shortens the iteration") {
  World world({{"a", 100}, {"b", 25}, {"c", 100}});
  REQUIRE(world.parts("b") == 4);
  world.run(200);
  CHECK(world.parts("b") <= 2);
  CHECK(world.parts("a") + world.parts("b") + world.parts("c") == 12);
  CHECK(world.count(DecisionKind::kExploit) >= 1);
  CHECK(world.count(DecisionKind::kKeep) >= 1);
  const BalanceView view = world.balancer.view();
  CHECK(view.observations == 200);
  CHECK(view.parts_moved >= 2);
  CHECK(view.last_gain.has_value());
  REQUIRE(view.boxes.size() == 3);
  CHECK(view.boxes[1].parts == world.parts("b"));
  CHECK(view.boxes[1].bytes_per_second < view.boxes[0].bytes_per_second);
}

TEST_CASE("a box that joins gets parts, and one that drains is left to the part maps") {
  World world({{"a", 100}, {"b", 100}, {"d", 100}});
  world.boxes.pop_back();
  world.run(20);
  REQUIRE(world.parts("d") == 0);
  world.boxes.push_back({"d", 0, true});
  world.run(3);
  CHECK(world.parts("d") == 3);
  CHECK(world.count(DecisionKind::kJoin) == 1);

  world.boxes[0].takes_parts = false;
  const size_t before = world.proposals;
  world.run(20);
  CHECK(world.proposals == before);
  CHECK(world.balancer.view().state == "waiting");
  CHECK_THAT(world.balancer.view().waits_for,
             Catch::Contains("box a to lose its parts: it drains"));
  world.map = reassign_parts(world.map, "a", {{"b"}, {"d"}});
  ++world.revision;
  world.run(40);
  CHECK(world.parts("a") == 0);
  CHECK(world.balancer.view().waits_for.empty());
}

TEST_CASE("loads under another part map, or of rounds seen before, lead to no decision") {
  World world({{"a", 100}, {"b", 25}, {"c", 100}});
  const auto loads = world.loads();
  for (int step = 0; step < 100; ++step) {
    CHECK_FALSE(world.balancer.step(world.map, world.revision, world.boxes, loads, 1));
  }
  CHECK(world.balancer.view().observations == 1);
  CHECK_THAT(world.balancer.view().waits_for,
             Catch::Contains("newer measurements under this part map from a, b, c"));
  for (int step = 0; step < 100; ++step) {
    auto fresh = world.loads();
    fresh["c"]["train"].map_revision = 6;
    CHECK_FALSE(world.balancer.step(world.map, world.revision, world.boxes, fresh, 1));
  }
  CHECK(world.balancer.view().observations == 1);
}

TEST_CASE("a job whose parts cannot move is left alone, and the view says why") {
  World world({{"a", 100}, {"b", 25}, {"c", 100}});
  world.map.may_move = false;
  world.run(100);
  CHECK(world.proposals == 0);
  CHECK_THAT(world.balancer.view().waits_for, Catch::Contains("cannot move"));
}

TEST_CASE("a part map that was not carried out changes nothing, and the reason is shown") {
  World world({{"a", 100}, {"b", 25}, {"c", 100}});
  std::optional<JobBalancer::Proposal> proposal;
  for (int step = 0; step < 200 && !proposal; ++step) {
    proposal =
        world.balancer.step(world.map, world.revision, world.boxes, world.loads(), world.now++);
  }
  REQUIRE(proposal);
  CHECK(world.balancer.view().state == "migrating");
  world.balancer.refused("etcd is away", 9);
  CHECK(world.balancer.view().parts_moved == 0);
  CHECK(world.count(DecisionKind::kAbandon) == 1);
  CHECK_THAT(world.balancer.view().decisions.back().reason, Catch::Contains("etcd is away"));
  world.run(400);
  CHECK(world.parts("b") <= 2);
}

TEST_CASE("several holds in a row show only the last one, and count all") {
  World world({{"a", 100}, {"b", 100}, {"c", 100}});
  world.run(300);
  const auto decisions = world.balancer.view().decisions;
  for (size_t index = 1; index < decisions.size(); ++index) {
    CHECK_FALSE((decisions[index].kind == DecisionKind::kHold &&
                 decisions[index - 1].kind == DecisionKind::kHold));
  }
  const auto told = world.balancer.take_decisions();
  CHECK(told.size() > decisions.size());
  CHECK(world.balancer.take_decisions().empty());
}

}  // namespace pbox::cluster
