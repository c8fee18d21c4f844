// A job in mode optimize on boxes of a cluster with a real etcd. Its parts move between boxes with
// weights and optimizer state, and every step gives the same weights as without moves.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/adam.h"
#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Steps that both ranks take before parts move or a box ends. The remaining steps must be affected.
constexpr uint64_t kStepsBefore = 3;

double restarts_of(const BoxCluster& boxes) {
  double restarts = 0;
  for (const Daemon* box : boxes.all()) restarts += box->metric("pbox_optimizer_restarts_total");
  return restarts;
}

}  // namespace

TEST_CASE("draining and stopping a box while a job in mode optimize trains changes no step") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  AdamTraining training({.box = boxes.control(), .checks = true});
  const size_t parts = boxes.parts("b");
  CHECK(parts > 0);
  training.begin_steps();
  training.await_steps(kStepsBefore);
  Program pboxctl(PBOX_CTL_PATH, {"drain", "b", "--wait", "--admin", boxes["a"].admin()});
  REQUIRE(pboxctl.wait_exit(kDeadlineMs) == 0);
  CHECK(boxes["b"].metric("pbox_parts_moved_total") == parts);
  // The signal comes right after the drain. The box stays until other boxes have its parts' state.
  boxes["b"].program().signal(SIGTERM);
  CHECK(boxes["b"].program().wait_exit(kDeadlineMs) == 0);
  boxes.remove("b");
  AdamTraining::Report report = training.end_steps();
  CHECK(report.recoveries > 0);
  CHECK(report.restarts == 0);
  CHECK(restarts_of(boxes) == 0);

  boxes.start("b");
  training.begin_steps();
  drain(boxes["a"], "b", false);
  drain(boxes["b"], "c", true);
  REQUIRE(await([&] { return boxes.parts("c") == 0; }));
  drain(boxes["b"], "c", false);
  drain(boxes["b"], "a", true);
  REQUIRE(await([&] { return boxes.parts("a") == 0; }));
  report = training.end_steps();
  CHECK(report.restarts == 0);
  CHECK(restarts_of(boxes) == 0);
  for (const Daemon* box : boxes.all()) CHECK(box->metric("pbox_jobs_failed_total") == 0);
}

TEST_CASE(
    "if a box dies before others have its state, training continues with a new optimizer state") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  const std::string leader = boxes.leader();
  const std::string dying = leader == "b" ? "c" : "b";
  const std::string slow = leader == "a" || dying == "a" ? (dying == "b" ? "c" : "b") : "a";
  AdamTraining training({.box = boxes.control(), .checks = false});
  // The leader takes no part, so every part of the box that dies is given to the slow box.
  drain(boxes[leader], leader, true);
  REQUIRE(await([&] { return boxes.parts(leader) == 0; }));
  REQUIRE(boxes.parts(dying) > 0);
  training.begin_steps();
  training.await_steps(kStepsBefore);
  boxes[slow].program().signal(SIGSTOP);  // so this box does not fetch the parts that it is given
  drain(boxes[leader], dying, true);
  CHECK(boxes[dying].program().await_errors("part_moved", kDeadlineMs));
  boxes[dying].program().signal(SIGKILL);
  boxes[slow].program().signal(SIGCONT);
  boxes.remove(dying);
  AdamTraining::Report report = training.end_steps();
  CHECK(report.restarts > 0);
  CHECK(restarts_of(boxes) > 0);
  training.begin_steps();
  CHECK(training.end_steps().restarts == report.restarts);
  for (const Daemon* box : boxes.all()) CHECK(box->metric("pbox_jobs_failed_total") == 0);
}

}  // namespace pbox::test
