// A job in mode optimize on boxes of a cluster with a real etcd: its parts go from box to box with
// weights and optimizer state, and every step gives the weights that it gives undisturbed.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "pipeline/optimizer/reference.h"
#include "tests/support/box_cluster.h"

namespace pbox::test {
namespace {

constexpr uint64_t kElements = 400'000;
constexpr useconds_t kIntoTheStepsUs = 200'000;
constexpr useconds_t kComputesUs = 5'000;  // between steps

#ifdef __SANITIZE_THREAD__
constexpr uint32_t kStepsEachTime = 10;
#else
constexpr uint32_t kStepsEachTime = 60;
#endif

float gradient_of(uint32_t rank, uint32_t step, uint64_t index) {
  return 0.01f * static_cast<float>((index * 7 + step * 13 + rank * 5) % 31) - 0.14f;
}

// The optimizer's definition upon the sum of two gradients, which is the same in either order.
class Expected {
 public:
  Expected() : weights(kElements, 0.5f), state_(2 * kElements, 0.0f) {}
  void step(uint32_t step) {
    const optimizer::OptimizerSpec adam{.kind = optimizer::OptimizerKind::kAdam,
                                        .learning_rate = 0.01f};
    const auto coefficients =
        optimizer::step_coefficients(adam, optimizer::step_parameters(adam, 1, 0, 1, step));
    for (uint64_t index = 0; index < kElements; ++index) {
      const float sum = gradient_of(0, step, index) + gradient_of(1, step, index);
      optimizer::reference::adam(coefficients, weights[index], state_[index],
                                 state_[kElements + index], sum);
    }
  }
  std::vector<float> weights;

 private:
  std::vector<float> state_;
};

struct Report {
  uint64_t recoveries = 0, restarts = 0;
};

// Adam on the boxes. Each time that it is told to, it takes some steps; "checks": whose weights are
// those of training undisturbed.
class AdamTraining {
 public:
  AdamTraining(const std::string& boxes, bool checks) {
    for (const uint32_t rank : {0u, 1u}) {
      ranks_.emplace_back([=](Line& line) { train(line, boxes, rank, checks); });
    }
    for (auto& rank : ranks_) REQUIRE(rank.heard() == "joined");
  }

  void begin_steps() const {
    for (const auto& rank : ranks_) rank.go();
  }
  // As both ranks have it.
  Report end_steps() {
    std::vector<std::string> said;
    for (auto& rank : ranks_) said.push_back(rank.heard().value_or("nothing"));
    CHECK(said[0] == said[1]);  // weights too
    Report report;
    unsigned long weights = 0;
    const int fields = std::sscanf(said[0].c_str(), "recoveries %lu restarts %lu weights %lu",
                                   &report.recoveries, &report.restarts, &weights);
    if (fields != 3) FAIL(said[0]);
    return report;
  }

 private:
  static void train(Line& line, const std::string& boxes, uint32_t rank, bool checks) {
    const AbiWorker worker(
        {.box = boxes, .job = "adam", .rank = rank, .world_size = 2, .adjust = [](auto& options) {
           options.mode = PBOX_MODE_OPTIMIZE;
         }});
    const uint32_t tensor = worker.tensor("weights", kElements);
    pbox_optimizer_options adam;
    pbox_optimizer_options_init(&adam, PBOX_ADAM);
    adam.learning_rate = 0.01f;
    worker.must(pbox_set_optimizer(worker.context(), &adam));
    worker.join();
    Expected expected;
    std::vector<float> weights = expected.weights, gradient(kElements);
    worker.must(pbox_init_weights(worker.context(), tensor, weights.data(), nullptr, nullptr));
    worker.wait(tensor);
    line.say("joined");
    for (uint32_t step = 1;; ++step) {
      if (step % kStepsEachTime == 1) line.await_go();
      for (uint64_t index = 0; index < kElements; ++index) {
        gradient[index] = gradient_of(rank, step, index);
      }
      usleep(kComputesUs);
      worker.push_pull(tensor, gradient.data(), weights.data());
      worker.wait(tensor);
      if (checks) {
        expected.step(step);
        require(weights == expected.weights, "wrong weights after step " + std::to_string(step));
      }
      if (step % kStepsEachTime == 0) line.say(describe(worker.statistics(), weights));
    }
  }

  static std::string describe(const pbox_statistics& statistics,
                              const std::vector<float>& weights) {
    uint64_t hash = 0;
    for (const float weight : weights) {
      uint32_t bits = 0;
      std::memcpy(&bits, &weight, sizeof(bits));
      hash = hash * 1'000'003 + bits;
    }
    return "recoveries " + std::to_string(statistics.recoveries > 0) + " restarts " +
           std::to_string(statistics.optimizer_restarts) + " weights " + std::to_string(hash);
  }

  std::vector<WorkerProcess> ranks_;
};

void drain(const Daemon& at, const std::string& box, bool draining) {
  const std::string body = draining ? R"({"draining": true})" : R"({"draining": false})";
  REQUIRE_THAT(at.post("/api/v1/boxes/" + box + "/drain", body), Catch::Contains("\"boxes\""));
}

double restarts_of(const BoxCluster& boxes) {
  double restarts = 0;
  for (const Daemon* box : boxes.all()) restarts += box->metric("pbox_optimizer_restarts_total");
  return restarts;
}

}  // namespace

TEST_CASE("a box is drained and stopped while a job in mode optimize trains: no step is other") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  AdamTraining training(boxes.control(), true);
  const size_t parts = boxes.parts("b");
  CHECK(parts > 0);
  training.begin_steps();
  usleep(kIntoTheStepsUs);
  Program pboxctl(PBOX_CTL_PATH, {"drain", "b", "--wait", "--admin", boxes["a"].admin()});
  REQUIRE(pboxctl.wait_exit(kDeadlineMs) == 0);
  CHECK(boxes["b"].metric("pbox_parts_moved_total") == parts);
  // At once: it stays until others have what was here.
  boxes["b"].program().signal(SIGTERM);
  CHECK(boxes["b"].program().wait_exit(kDeadlineMs) == 0);
  boxes.remove("b");
  Report report = training.end_steps();
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

TEST_CASE("a box dies before others have what it had: they go on, and the optimizer begins anew") {
  const EtcdCluster etcd(3);
  BoxCluster boxes(etcd, {"a", "b", "c"});
  const std::string leader = boxes.leader();
  const std::string dying = leader == "b" ? "c" : "b";
  const std::string slow = leader == "a" || dying == "a" ? (dying == "b" ? "c" : "b") : "a";
  AdamTraining training(boxes.control(), false);
  training.begin_steps();
  usleep(kIntoTheStepsUs);
  boxes[slow].program().signal(SIGSTOP);  // nobody asks for what comes to it
  drain(boxes[leader], dying, true);
  CHECK(boxes[dying].program().await_errors("part_moved", kDeadlineMs));
  boxes[dying].program().signal(SIGKILL);
  boxes[slow].program().signal(SIGCONT);
  boxes.remove(dying);
  Report report = training.end_steps();
  CHECK(report.restarts > 0);
  CHECK(restarts_of(boxes) > 0);
  training.begin_steps();
  CHECK(training.end_steps().restarts == report.restarts);
  for (const Daemon* box : boxes.all()) CHECK(box->metric("pbox_jobs_failed_total") == 0);
}

}  // namespace pbox::test
