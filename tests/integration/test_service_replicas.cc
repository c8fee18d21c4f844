// A job in mode optimize whose weights and optimizer state are replicated on another box (replicas
// = 1), on boxes of a cluster with a real etcd. Boxes die, and every step gives the same weights as
// without the loss.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/adam.h"
#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

// Steps that both ranks take before a box is lost. The remaining steps must be affected.
constexpr uint64_t kStepsBefore = 3;

uint64_t sum_of(const BoxCluster& boxes, const std::string& metric) {
  uint64_t sum = 0;
  for (const Daemon* box : boxes.all()) sum += box->metric(metric);
  return sum;
}

bool all_have_copies(const BoxCluster& boxes) {
  return sum_of(boxes, "pbox_job_parts_without_copy") == 0;
}

void check_nothing_was_lost(const BoxCluster& boxes, const AdamTraining::Report& report) {
  CHECK(report.restarts == 0);
  CHECK(sum_of(boxes, "pbox_optimizer_restarts_total") == 0);
  CHECK(sum_of(boxes, "pbox_jobs_failed_total") == 0);
}

constexpr uint64_t kElements = 54'321;
constexpr float kBound = 100;

// Takes a step on each go(). Every other gradient has a value beyond the bound, which must not
// count.
void step_with_guard(const std::string& box, pbox_guard guard, Line& line) {
  const AbiWorker worker({.box = box, .job = "guarded", .adjust = [guard](pbox_options& options) {
                            options.mode = PBOX_MODE_OPTIMIZE;
                            options.replicas = 1;
                            options.guard = guard;
                            options.guard_max_abs = kBound;
                          }});
  const uint32_t tensor = worker.tensor("t", kElements);
  std::vector<float> weights(kElements, 8), expected = weights;
  worker.join_with_sgd(1, tensor, weights);
  for (bool is_sound = true;; is_sound = !is_sound) {
    line.say("ready");
    line.await_go();
    std::vector<float> gradient(kElements, 1);
    if (!is_sound) gradient[kElements / 2] = 2 * kBound;
    worker.push_pull(tensor, gradient.data(), weights.data());
    worker.wait(tensor);
    for (uint64_t element = 0; element < kElements; ++element) {
      const bool counts = is_sound || (guard == PBOX_GUARD_ZERO && element != kElements / 2);
      if (counts) expected[element] -= 1;
    }
    require(weights == expected, "the weights are wrong");
    require(worker.statistics().optimizer_restarts == 0, "the optimizer has lost its state");
  }
}

constexpr int kStepsAfter = 100;

// On each go(), takes steps until the job has recovered from a loss, and kStepsAfter more. Counts
// them in `progress`. A round closes with one rank, and each push is 1 everywhere. So the mean is 1
// whichever ranks are in it, and each closed round lowers all weights of its chunk by 1. The
// weights that this rank has received therefore show whether a round was lost.
void step_with_quorum(const std::string& box, uint32_t rank, const Progress& progress, Line& line) {
  AbiWorker worker({.box = box,
                    .job = "quorum",
                    .rank = rank,
                    .world_size = 2,
                    .adjust = [](pbox_options& options) {
                      options.mode = PBOX_MODE_OPTIMIZE;
                      options.reduction = PBOX_MEAN;
                      options.recovery = PBOX_RECOVERY_NONE;
                      options.sync = PBOX_SYNC_DROP;
                      options.quorum = 1;
                      options.on_worker_lost = PBOX_LOST_PARTIAL;
                      options.replicas = 1;
                    }});
  const uint32_t tensor = worker.tensor("t", kElements);
  std::vector<float> weights(kElements, 1e6f), former = weights;
  worker.join_with_sgd(1, tensor, weights);
  for (;;) {
    const uint64_t recoveries = worker.statistics().recoveries;
    line.say("ready");
    line.await_go();
    for (int after = 0; after < kStepsAfter;) {
      usleep(500 * (1 + rank));
      former = weights;
      const std::vector<float> gradient(kElements, 1);
      worker.push_pull(tensor, gradient.data(), weights.data());
      worker.wait(tensor);
      for (uint64_t element = 0; element < kElements; ++element) {
        require(weights[element] <= former[element] - 1, "a round was lost");
        require(weights[element] == std::floor(weights[element]), "a mean is wrong");
      }
      progress.advance(rank);
      if (worker.statistics().recoveries > recoveries) ++after;
    }
  }
}

}  // namespace

TEST_CASE("rounds that closed with a quorum are not lost with the boxes that closed them") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  const Progress progress(2);
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank, box = boxes.control()](Line& line) {
      step_with_quorum(box, rank, progress, line);
    });
  }
  for (auto& rank : ranks) REQUIRE(rank.heard() == "ready");
  const std::string leader = boxes.leader();
  for (const std::string& dying : {leader == "b" ? std::string("c") : std::string("b"), leader}) {
    REQUIRE(await([&] { return all_have_copies(boxes); }));
    CHECK(boxes.parts(dying) > 0);
    const uint64_t steps = progress.least();
    for (auto& rank : ranks) rank.go();
    progress.await(steps + kStepsBefore);
    boxes[dying].program().signal(SIGKILL);
    boxes.remove(dying);
    for (auto& rank : ranks) REQUIRE(rank.heard() == "ready");
  }
  CHECK(sum_of(boxes, "pbox_jobs_failed_total") == 0);
  // The last box has no other box that could hold a copy.
  CHECK(sum_of(boxes, "pbox_job_parts_without_copy") > 0);
}

TEST_CASE("boxes die one after the other, and their parts continue from the backup copies") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  AdamTraining training({.box = boxes.control(), .checks = true, .replicas = 1});
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
    check_nothing_was_lost(boxes, report);
    if (boxes.all().size() > 1) REQUIRE(await([&] { return all_have_copies(boxes); }));
  }
  // Only one box is left, so no box can hold a copy. Then another one joins.
  const Daemon& last = *boxes.all().at(0);
  CHECK(last.metric("pbox_job_parts_without_copy") > 0);
  boxes.start("d");
  REQUIRE(await([&] { return all_have_copies(boxes); }));
  training.begin_steps();
  training.await_steps(kStepsBefore);
  const std::string oldest = leader == "a" ? "c" : "a";
  boxes[oldest].program().signal(SIGKILL);
  boxes.remove(oldest);
  check_nothing_was_lost(boxes, training.end_steps());
  CHECK(boxes.parts("d") > 0);
}

TEST_CASE("boxes are restarted without a drain, because other boxes have the backup copies") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b"});
  AdamTraining training({.box = boxes.control(), .checks = true, .replicas = 1});
  for (int time = 0; time < 3; ++time) {
    REQUIRE(await([&] { return all_have_copies(boxes); }));
    training.begin_steps();
    training.await_steps(kStepsBefore);
    const std::string box = boxes.parts("a") > boxes.parts("b") ? "a" : "b";
    CHECK(boxes.parts(box) > 0);
    boxes[box].program().signal(SIGTERM);
    CHECK(boxes[box].program().wait_exit(kDeadlineMs) == 0);
    CHECK(training.is_under_way());  // the steps that are left need the copies
    boxes.remove(box);
    boxes.start(box);
    const AdamTraining::Report report = training.end_steps();
    CHECK(report.recoveries > 0);
    check_nothing_was_lost(boxes, report);
  }
}

TEST_CASE("guards work on a box that continues from a backup copy") {
  const pbox_guard guard = GENERATE(PBOX_GUARD_REJECT, PBOX_GUARD_ZERO);
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  WorkerProcess rank([&, box = boxes.control()](Line& line) { step_with_guard(box, guard, line); });
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      rank.go();
      REQUIRE(rank.heard() == "ready");
    }
  };
  REQUIRE(rank.heard() == "ready");
  steps(3);
  REQUIRE(await([&] { return all_have_copies(boxes); }));
  const std::string dying = boxes.parts("a") > 0 ? "a" : "b";
  boxes[dying].program().signal(SIGKILL);
  boxes.remove(dying);
  steps(4);
}

TEST_CASE("the cost of backup copies is visible, and nothing of them stays when the job is over") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  AdamTraining training({.box = boxes.control(), .checks = true, .replicas = 1, .times = 2});
  training.begin_steps();
  training.end_steps();
  CHECK(sum_of(boxes, "pbox_job_copied_chunks_total") > 500);
  const auto jobs = nlohmann::json::parse(boxes["a"].get("/api/v1/jobs"))["jobs"];
  bool has_copy = false;
  for (const auto& job : jobs) {
    has_copy = has_copy || job["is_backup"];
    if (job["name"] == "adam") CHECK(job["backup"]["boxes"] == nlohmann::json::array({"b"}));
  }
  CHECK(has_copy);
  training.begin_steps();
  training.end_steps();
  for (const Daemon* box : boxes.all()) {
    CHECK(box->await_no_jobs(kDeadlineMs));
    CHECK(await([&] { return box->metric("pbox_box_job_memory_bytes") == 0; }));
  }
}

}  // namespace pbox::test
