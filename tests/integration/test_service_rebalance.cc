// The rebalancer in real boxes of a cluster with a real etcd. A slow box loses parts of a training
// job, a box that joins gets some, and every sum stays right.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Flags by which boxes observe as often as the daemon allows.
const std::vector<std::string> kFlags = {"--cluster.rebalance_interval_ms=100",
                                         "--control.heartbeat_interval_ms=100"};

SteadyTraining::Options training_on(const std::string& boxes) {
  return {.box = boxes, .ranks = 2, .elements = {300'000, 40'000, 7, 250'001}, .rounds = 20};
}

// Lets the box's process run for less than half of the time, for as long as this object lives.
class SlowBox {
 public:
  explicit SlowBox(const Program& box)
      : box_(box), thread_([this] {
          while (!ends_) {
            box_.signal(SIGSTOP);
            usleep(30'000);
            box_.signal(SIGCONT);
            usleep(10'000);
          }
        }) {}
  ~SlowBox() {
    ends_ = true;
    thread_.join();
  }
  SlowBox(const SlowBox&) = delete;
  SlowBox& operator=(const SlowBox&) = delete;

 private:
  const Program& box_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

nlohmann::json rebalancing_of(const Daemon& box) {
  return nlohmann::json::parse(box.get("/api/v1/rebalancing"));
}

// Trains with checked sums until `done` returns true; returns false if that takes too many turns.
bool train_until(SteadyTraining& training, const std::function<bool()>& done) {
  for (int turn = 0; turn < 400; ++turn) {
    if (done()) return true;
    training.rounds();
  }
  return false;
}

std::string shown(const Daemon& box, const Arguments& words) {
  const Output output = ask(box, PBOX_CTL_PATH, words);
  REQUIRE(output.status == 0);
  return output.text;
}

}  // namespace

TEST_CASE("a slow box loses parts while a job trains, and the leader logs why") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b", "c"}, kFlags);
  const std::string leader = boxes.leader();
  const std::string slow = leader == "b" ? "c" : "b";
  SteadyTraining training(training_on(boxes.control()));
  const size_t before = boxes.parts(slow);
  {
    const SlowBox slowed(boxes[slow].program());
    CHECK(train_until(training, [&] { return 2 * boxes.parts(slow) <= before; }));
  }
  training.rounds();
  CHECK(boxes.parts("a") + boxes.parts("b") + boxes.parts("c") == 3 * before);

  const nlohmann::json page = rebalancing_of(boxes[leader]);
  CHECK(page["leads"] == true);
  CHECK(page["decisions"]["exploit"] >= 1);
  REQUIRE(page["jobs"].size() == 1);
  CHECK(page["jobs"][0]["parts_moved"] >= before / 2);
  CHECK(boxes[leader].metric("pbox_rebalance_parts_moved_total") >= 1);
  const std::string why = shown(boxes[leader], {"boxes", "--why"});
  CHECK_THAT(why, Catch::Contains("exploit") && Catch::Contains("shares by measured rate"));
  CHECK_THAT(shown(boxes[slow], {"boxes", "--why"}),
             Catch::Contains("name box " + leader + " with --admin"));
  CHECK(nlohmann::json::parse(shown(boxes[leader], {"boxes", "--why", "-o", "json"}))["enabled"] ==
        true);
  training.kill();
}

TEST_CASE(
    "a box that joins while a job trains gets parts, and so does a box whose drain is undone") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"}, kFlags);
  SteadyTraining training(training_on(boxes.control()));
  const size_t parts = boxes.parts("a") + boxes.parts("b");
  training.rounds();
  boxes.start("c");
  CHECK(train_until(training, [&] { return boxes.parts("c") > 0; }));
  CHECK(boxes.parts("a") + boxes.parts("b") + boxes.parts("c") == parts);
  const auto drain = [&](bool draining) {
    const std::string body = draining ? R"({"draining": true})" : R"({"draining": false})";
    REQUIRE_THAT(boxes["b"].post("/api/v1/boxes/a/drain", body), Catch::Contains("\"boxes\""));
  };
  drain(true);
  CHECK(train_until(training, [&] { return boxes.parts("a") == 0; }));
  drain(false);
  CHECK(train_until(training, [&] { return boxes.parts("a") > 0; }));
  training.kill();
}

TEST_CASE("measuring a job's load leaves no trace in etcd, whose history would grow for ever") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"}, kFlags);
  const std::string leader = boxes.leader();
  SteadyTraining training(training_on(boxes.control()));
  const auto observations = [&]() -> uint64_t {
    const nlohmann::json page = rebalancing_of(boxes[leader]);
    return page["jobs"].empty() ? 0 : page["jobs"][0]["observations"].get<uint64_t>();
  };
  REQUIRE(train_until(training, [&] { return observations() > 0; }));
  const std::string map = "pbox/rack/jobs/training";
  const int64_t revision = etcd.revision(), version = etcd.version(map);
  const uint64_t seen = observations();
  REQUIRE(train_until(training, [&] { return observations() >= seen + 5; }));
  const int64_t moves = etcd.version(map) - version;
  CHECK(etcd.revision() - revision <= moves);
  training.kill();
}

}  // namespace pbox::test
