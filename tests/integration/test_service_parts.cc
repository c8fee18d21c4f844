// A job in parts on three boxes of a cluster with a real etcd. Boxes are killed, stopped, drained
// and added while the job trains, and every sum stays right.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Rounds that every rank runs before a box is disturbed. The remaining rounds must be affected.
constexpr uint64_t kRoundsBefore = 3;

// The thread sanitizer makes rounds ten times as long.
#ifdef __SANITIZE_THREAD__
constexpr uint32_t kRoundsEachTime = 8;
#else
constexpr uint32_t kRoundsEachTime = 40;
#endif

// Four ranks with about 3 MB of gradients. They pause between rounds, as if they computed.
SteadyTraining::Options training_on(const std::string& boxes) {
  return {.box = boxes,
          .ranks = 4,
          .elements = {300'000, 40'000, 7, 250'001, 100'000},
          .rounds = kRoundsEachTime,
          .pause_us = 10'000};
}

// Reports how long the disturbance delayed a round. No check depends on it, because the machine is
// shared.
void report(const char* what, const SteadyTraining& training) {
  std::printf("%s: the longest round took %.0f ms\n", what, 1e3 * training.longest_round_s());
}

size_t parts_of_all(const BoxCluster& boxes) {
  size_t parts = 0;
  const auto page = boxes_of(*boxes.all()[0]);
  for (const auto& box : page["boxes"]) parts += box["parts"].get<size_t>();
  return parts;
}

}  // namespace

TEST_CASE("a job is spread over the boxes and survives the death of any box, the leader included") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  SteadyTraining training(training_on(boxes.control()));
  const size_t parts = parts_of_all(boxes);
  CHECK(parts == 24);
  for (const char* name : {"a", "b", "c"}) CHECK(boxes.parts(name) == 8);
  training.rounds();
  report("undisturbed", training);

  for (const bool kills_leader : {true, false}) {
    const std::string leader = boxes.leader();
    std::string victim = leader;
    for (const char* name : {"a", "b", "c"}) {
      if (!kills_leader && name != leader) victim = name;
    }
    training.begin_rounds();
    training.await_rounds(kRoundsBefore);
    CHECK(boxes.parts(victim) > 0);
    boxes[victim].program().signal(SIGKILL);
    training.end_rounds();
    CHECK(training.recoveries() > 0);
    report(kills_leader ? "leader killed" : "box killed", training);
    boxes.remove(victim);
    CHECK(parts_of_all(boxes) == parts);
    training.rounds();
    boxes.start(victim);
    CHECK(boxes.parts(victim) == 0);
    // The restarted box is a member again, and takes its share when another box is lost.
    training.rounds();
  }
  training.kill();
}

TEST_CASE("a box is drained while a job trains, stopped, and comes back") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  SteadyTraining training(training_on(boxes.control()));
  const size_t parts = parts_of_all(boxes);
  training.begin_rounds();
  training.await_rounds(kRoundsBefore);
  Program pboxctl(PBOX_CTL_PATH, {"drain", "b", "--wait", "--admin", boxes["a"].admin()});
  REQUIRE(pboxctl.wait_exit(kDeadlineMs) == 0);
  CHECK_THAT(pboxctl.errors(), Catch::Contains("box b has no parts left; you may stop it"));
  CHECK(boxes.parts("b") == 0);
  training.end_rounds();
  CHECK(training.recoveries() > 0);
  report("drained", training);
  CHECK(parts_of_all(boxes) == parts);
  CHECK(boxes["b"].metric("pbox_parts_moved_total") == parts / 3);
  CHECK(boxes["b"].metric("pbox_jobs_failed_total") == 0);
  CHECK(boxes["b"].await_no_jobs(kDeadlineMs));

  boxes["b"].program().signal(SIGTERM);
  CHECK(boxes["b"].program().wait_exit(kDeadlineMs) == 0);
  boxes.remove("b");
  training.rounds();
  boxes.start("b");  // as after an upgrade
  training.begin_rounds();
  drain(boxes["a"], "b", false);
  drain(boxes["b"], "c", true);
  REQUIRE(await([&] { return boxes.parts("c") == 0; }));
  training.end_rounds();
  report("moved to a new box", training);
  CHECK(boxes.parts("b") > 0);
  training.kill();
}

// When the rank dies, it has done the current round of the first tensor and pushed nothing of the
// second. Its replacement continues each tensor at the round that the box states.
TEST_CASE("a rank that is killed in the middle of a round is replaced in all parts alike") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  constexpr uint64_t kElements = 400'000;
  constexpr uint32_t kRounds = 30, kLast = 15;
  const auto body = [&](Line& line, uint32_t rank, bool rejoins) {
    const AbiWorker worker({.box = boxes.control(),
                            .job = "replaced",
                            .rank = rank,
                            .world_size = 2,
                            .adjust = [&](pbox_options& options) {
                              options.rejoin = rejoins ? 1 : 0;
                              options.chunk_bytes = 4096;
                            }});
    const uint32_t tensors[] = {worker.tensor("t", kElements), worker.tensor("u", kElements)};
    worker.join();
    uint32_t rounds[2] = {};
    for (const size_t index : {0, 1}) {
      worker.must(pbox_tensor_round(worker.context(), tensors[index], &rounds[index]));
    }
    require(rounds[0] == (rejoins ? kLast + 1 : 0) && rounds[1] == (rejoins ? kLast : 0),
            "joins in rounds " + std::to_string(rounds[0]) + " and " + std::to_string(rounds[1]));
    std::vector<float> output(kElements);
    for (uint32_t round = rounds[1]; round < kRounds; ++round) {
      const std::vector<float> input(kElements, static_cast<float>((rank + 1) * (round + 1)));
      const bool dies = rank == 1 && !rejoins && round == kLast;
      for (const size_t index : {0, 1}) {
        if (round < rounds[index]) continue;
        worker.push_pull(tensors[index], input.data(), output.data());
        worker.wait(tensors[index]);
        require(std::count(output.begin(), output.end(), static_cast<float>(3 * (round + 1))) ==
                    kElements,
                "a wrong sum in round " + std::to_string(round));
        if (dies) kill(getpid(), SIGSTOP);
      }
    }
    worker.leave();
    line.say("well");
  };
  WorkerProcess staying([&](Line& line) { body(line, 0, false); });
  WorkerProcess dying([&](Line& line) { body(line, 1, false); });
  siginfo_t stopped{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(dying.pid()), &stopped, WSTOPPED | WNOWAIT) == 0);
  REQUIRE(stopped.si_code == CLD_STOPPED);
  dying.signal(SIGKILL);
  dying.finish();
  WorkerProcess again([&](Line& line) { body(line, 1, true); });
  CHECK(again.heard().value_or("nothing") == "well");
  CHECK(staying.heard().value_or("nothing") == "well");
}

TEST_CASE("in mode optimize the weights of a killed box are restored from the workers") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  constexpr uint64_t kElements = 400'000;
  const Progress progress(2);
  const auto body = [&](Line& line, uint32_t rank) {
    AbiWorker worker({.box = boxes.control(),
                      .job = "optimizes",
                      .rank = rank,
                      .world_size = 2,
                      .adjust = [](pbox_options& options) { options.mode = PBOX_MODE_OPTIMIZE; }});
    const uint32_t tensor = worker.tensor("t", kElements);
    std::vector<float> weights(kElements, 0.0f);
    worker.join_with_sgd(1, tensor, weights);
    line.say("begins");
    const std::vector<float> gradient(kElements, -1.0f - static_cast<float>(rank));
    uint32_t left = 10;
    for (uint32_t step = 1; left > 0; ++step) {
      worker.push_pull(tensor, gradient.data(), weights.data());
      worker.wait(tensor);
      require(
          std::count(weights.begin(), weights.end(), 3.0f * static_cast<float>(step)) == kElements,
          "wrong weights after step " + std::to_string(step));
      progress.advance(rank);
      if (worker.statistics().recoveries > 0) --left;
    }
    worker.leave();
  };
  std::vector<WorkerProcess> workers;
  for (const uint32_t rank : {0u, 1u}) {
    workers.emplace_back([&, rank](Line& line) { body(line, rank); });
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "begins");
  progress.await(kRoundsBefore);
  CHECK(boxes.parts("b") > 0);
  boxes["b"].program().signal(SIGKILL);
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("an immovable job stays on a draining box, even after a movable job of the same name") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  auto options = training_on(boxes.control());
  {
    SteadyTraining movable(options);
    movable.kill();
  }
  for (const char* name : {"a", "b"}) REQUIRE(boxes[name].await_no_jobs(kDeadlineMs));
  options.adjust = [](pbox_options& chosen) { chosen.recovery = PBOX_RECOVERY_NONE; };
  SteadyTraining bound(options);
  const size_t parts = boxes.parts("b");
  CHECK(parts > 0);
  drain(boxes["a"], "b", true);
  CHECK_FALSE(boxes[boxes.leader()].program().await_errors("parts_given_away", 1'500));
  bound.rounds();
  CHECK(boxes.parts("b") == parts);
  bound.kill();
}

TEST_CASE("a box that is stopped without a drain hands its parts to other boxes") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  SteadyTraining training(training_on(boxes.control()));
  training.begin_rounds();
  training.await_rounds(kRoundsBefore);
  CHECK(boxes.parts("b") > 0);
  boxes["b"].program().signal(SIGTERM);
  CHECK(boxes["b"].program().wait_exit(kDeadlineMs) == 0);
  boxes.remove("b");
  training.end_rounds();
  CHECK(training.recoveries() > 0);
  report("stopped", training);
  training.rounds();
  training.kill();
}

TEST_CASE(
    "while a box hangs for five seconds, rounds wait for it or for other boxes to take over") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  SteadyTraining training(training_on(boxes.control()));
  training.begin_rounds();
  training.await_rounds(kRoundsBefore);
  boxes["b"].program().signal(SIGSTOP);
  const uint64_t done = training.rounds_done();
  sleep(5);
  // The rounds under way stood still, or the others took over.
  const bool stood_still = training.rounds_done() <= done + 1;
  boxes["b"].program().signal(SIGCONT);
  training.end_rounds();
  CHECK((stood_still || training.recoveries() > 0));
  report("hung for 5 s", training);
  training.rounds();
  training.kill();
}

TEST_CASE(
    "without etcd a running job continues; a box lost meanwhile is replaced when etcd is back") {
  EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  SteadyTraining training(training_on(boxes.control()));
  etcd.kill(0);
  REQUIRE(await([&] { return boxes["a"].metric("pbox_cluster_store_up") == 0; }));
  training.rounds();
  report("without etcd", training);
  training.begin_rounds();
  training.await_rounds(kRoundsBefore);
  boxes["b"].program().signal(SIGKILL);
  boxes.remove("b");
  sleep(1);
  etcd.start(0);
  training.end_rounds();
  CHECK(training.recoveries() > 0);
  report("etcd back", training);
  CHECK(boxes["a"].metric("pbox_jobs_failed_total") == 0);
  training.kill();
}

}  // namespace pbox::test
