// A job whose boxes skip rounds that are not finite, on boxes of a cluster with a real etcd. Its
// parts move and its boxes die. In every tenth round one rank's gradient has one infinity, in one
// part. Every step gives the same weights as undisturbed training that leaves these rounds out, and
// both ranks learn the same of each round.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/adam.h"
#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Steps that both ranks take before parts move or a box ends. The remaining steps must be affected.
constexpr uint64_t kStepsBefore = 3;

uint64_t sum_of(const BoxCluster& boxes, const std::string& metric) {
  uint64_t sum = 0;
  for (const Daemon* box : boxes.all()) sum += static_cast<uint64_t>(box->metric(metric));
  return sum;
}

bool all_have_copies(const BoxCluster& boxes) {
  return sum_of(boxes, "pbox_job_parts_without_copy") == 0;
}

}  // namespace

TEST_CASE("rounds are skipped in all parts, while boxes that have parts drain") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  AdamTraining training({.box = boxes.control(), .checks = true, .skips = true});
  for (const std::string name : {"a", "b", "c"}) CHECK(boxes.parts(name) > 0);
  training.begin_steps();
  training.end_steps();
  for (const std::string name : {"b", "a"}) {
    training.begin_steps();
    training.await_steps(kStepsBefore);
    drain(boxes["c"], name, true);
    REQUIRE(await([&] { return boxes.parts(name) == 0; }));
    CHECK(training.end_steps().restarts == 0);
    drain(boxes["c"], name, false);
  }
  CHECK(sum_of(boxes, "pbox_jobs_failed_total") == 0);
}

TEST_CASE("rounds are skipped in all parts, while boxes die that have parts") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  AdamTraining training({.box = boxes.control(), .checks = true, .replicas = 1, .skips = true});
  REQUIRE(await([&] { return all_have_copies(boxes); }));
  const std::string leader = boxes.leader();
  for (const std::string& dying : {leader == "b" ? std::string("c") : std::string("b"), leader}) {
    CHECK(boxes.parts(dying) > 0);
    training.begin_steps();
    training.await_steps(kStepsBefore);
    boxes[dying].program().signal(SIGKILL);
    boxes.remove(dying);
    const AdamTraining::Report report = training.end_steps();
    CHECK(report.recoveries > 0);
    CHECK(report.restarts == 0);
    if (boxes.all().size() > 1) REQUIRE(await([&] { return all_have_copies(boxes); }));
  }
  CHECK(sum_of(boxes, "pbox_jobs_failed_total") == 0);
}

TEST_CASE("a box dies without a backup copy, and the ranks agree on every round after it") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b"});
  AdamTraining training({.box = boxes.control(), .checks = false, .skips = true});
  training.begin_steps();
  training.await_steps(kStepsBefore);
  const std::string dying = boxes.leader();
  boxes[dying].program().signal(SIGKILL);
  boxes.remove(dying);
  CHECK(training.end_steps().recoveries > 0);
  training.begin_steps();
  training.end_steps();
  CHECK(sum_of(boxes, "pbox_jobs_failed_total") == 0);
}

}  // namespace pbox::test
