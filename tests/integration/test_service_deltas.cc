// Compressed tensors in mode optimize over real boxes: the initial weights are exact, all ranks
// have the same weights whatever is lost, and over rounds they stay near those of exact sums.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

constexpr uint64_t kElements = 100'003;  // 13 chunks; the last one ends within a block
constexpr float kLearningRate = 0.5f;

struct Plan {
  std::string box;
  uint32_t workers = 2;
  uint32_t rounds = 40;
  pbox_compression compression = PBOX_COMPRESSION_Q8;
  pbox_numerics numerics = PBOX_NUMERICS_FAST;
  uint32_t replicas = 0;
  uint32_t stops_at = UINT32_MAX;  // the last rank stands still before this round
  bool rejoins = false;
};

float gradient_of(uint32_t rank, uint32_t round, uint64_t element) {
  return static_cast<float>(std::sin(static_cast<double>(element * (rank + 1) % 997 + round * 31)));
}

float initial_of(uint64_t element) {
  return static_cast<float>(element % 1013) / 997 - 0.3f;
}

std::string digest_of(const std::vector<float>& values) {
  uint64_t digest = 0;
  for (const float value : values) {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    digest = digest * 0x100000001b3 + bits;
  }
  return std::to_string(digest);
}

// Returns the largest distance of the weights from those that exact sums would have given.
double distance(const std::vector<float>& weights, const Plan& plan) {
  double worst = 0;
  for (uint64_t at = 0; at < kElements; at += 7) {
    double exact = double{initial_of(at)};
    for (uint32_t round = 1; round < plan.rounds; ++round) {
      for (uint32_t rank = 0; rank < plan.workers; ++rank) {
        exact -= double{kLearningRate} * double{gradient_of(rank, round, at)};
      }
    }
    worst = std::max(worst, std::fabs(exact - double{weights[at]}));
  }
  return worst;
}

// A rank's process: says "joined", and after the last round the weights' digest, their distance
// from the exact ones, and how many bytes it has pushed.
void run_rank(const Plan& plan, uint32_t rank, Line& line) {
  const AbiWorker worker({.box = plan.box,
                          .rank = rank,
                          .world_size = plan.workers,
                          .adjust = [&](pbox_options& options) {
                            options.mode = PBOX_MODE_OPTIMIZE;
                            options.compression = plan.compression;
                            options.numerics = plan.numerics;
                            options.replicas = plan.replicas;
                            options.rejoin = plan.rejoins ? 1 : 0;
                          }});
  const uint32_t tensor = worker.tensor("dense", kElements);
  std::vector<float> weights(kElements), gradient(kElements);
  for (uint64_t at = 0; at < kElements; ++at) {
    weights[at] = rank == 0 ? initial_of(at) : -1.0f;
  }
  worker.join_with_sgd(kLearningRate, tensor, weights);
  uint32_t round = 0;
  worker.must(pbox_tensor_round(worker.context(), tensor, &round));
  if (round == 1) {
    for (uint64_t at = 0; at < kElements; ++at) {
      require(weights[at] == initial_of(at), "the initial weights are not exact");
    }
  }
  line.say("joined");
  line.await_go();
  for (; round < plan.rounds; ++round) {
    if (round == plan.stops_at) {
      line.say("stopped");
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    for (uint64_t at = 0; at < kElements; ++at) gradient[at] = gradient_of(rank, round, at);
    worker.push_pull(tensor, gradient.data(), weights.data());
    worker.wait(tensor);
  }
  line.say(digest_of(weights) + " " + std::to_string(distance(weights, plan)) + " " +
           std::to_string(worker.statistics().bytes_pushed));
  worker.leave();
}

std::vector<WorkerProcess> start(const Plan& plan) {
  std::vector<WorkerProcess> ranks;
  for (uint32_t rank = 0; rank < plan.workers; ++rank) {
    ranks.emplace_back([&plan, rank](Line& line) {
      Plan own = plan;
      if (rank + 1 < plan.workers) own.stops_at = UINT32_MAX;
      run_rank(own, rank, line);
    });
  }
  for (WorkerProcess& rank : ranks) REQUIRE(rank.heard().value_or("nothing") == "joined");
  for (const WorkerProcess& rank : ranks) rank.go();
  return ranks;
}

struct Outcome {
  std::string digest;
  double distance = 0, bytes_pushed = 0;
};

Outcome collect(std::vector<WorkerProcess>& ranks) {
  Outcome outcome;
  for (WorkerProcess& rank : ranks) {
    const std::string said = rank.heard().value_or("nothing");
    INFO(said);
    const std::string digest = said.substr(0, said.find(' '));
    if (outcome.digest.empty()) outcome.digest = digest;
    CHECK(digest == outcome.digest);
    REQUIRE(sscanf(said.c_str(), "%*s %lf %lf", &outcome.distance, &outcome.bytes_pushed) == 2);
    CHECK(rank.finish() == "");
  }
  return outcome;
}

// The residues of the ranks' gradients hold at most a step each, and so does the last delta's.
double bound_of(const Plan& plan) {
  const double step = plan.compression == PBOX_COMPRESSION_Q4 ? 1 / 3.5 : 1.0 / 127;
  return 2 * double{kLearningRate} * plan.workers * step;
}

}  // namespace

TEST_CASE("weights of compressed tensors are the same on all ranks, and near the exact ones") {
  const Daemon daemon;
  for (const auto compression : {PBOX_COMPRESSION_Q8, PBOX_COMPRESSION_Q4}) {
    Plan plan{.box = daemon.control(), .compression = compression};
    auto ranks = start(plan);
    const Outcome outcome = collect(ranks);
    CHECK(outcome.distance < bound_of(plan));
    const double bits = compression == PBOX_COMPRESSION_Q8 ? 8.25 : 4.25;
    const double bytes = kElements * (4 + (plan.rounds - 1) * bits / 8);
    CHECK(outcome.bytes_pushed > bytes);
    CHECK(outcome.bytes_pushed < bytes * 1.01);
  }
}

TEST_CASE("with ordered numerics compressed training repeats bit for bit") {
  const Daemon daemon;
  const Plan plan{
      .box = daemon.control(), .workers = 3, .rounds = 12, .numerics = PBOX_NUMERICS_ORDERED};
  auto first = start(plan);
  const std::string digest = collect(first).digest;
  auto second = start(plan);
  CHECK(collect(second).digest == digest);
}

TEST_CASE("compressed weights stay the same on all ranks while their box is killed") {
  for (const auto compression : {PBOX_COMPRESSION_Q8, PBOX_COMPRESSION_Q4}) {
    MortalBox box;
    const Plan plan{.box = box.daemon().control(), .rounds = 150, .compression = compression};
    auto ranks = start(plan);
    constexpr uint64_t kPackets = 300;
    constexpr int kCrashes = 3;
    for (int crash = 0; crash < kCrashes; ++crash) {
      REQUIRE(await([&] { return box.daemon().metric("pbox_rx_packets_total") > kPackets; }));
      box.kill();
      box.start_again();
    }
    const Outcome outcome = collect(ranks);
    CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
    // Each box that is lost loses the residue of its last deltas.
    CHECK(outcome.distance < (1 + kCrashes) * bound_of(plan));
  }
}

TEST_CASE("compressed weights stay the same on all ranks when a box with a copy takes over") {
  const EtcdCluster etcd(1);
  BoxCluster boxes(etcd, {"a", "b"});
  const Plan plan{.box = boxes.control(), .rounds = 400, .replicas = 1};
  auto ranks = start(plan);
  const std::string dying = boxes.leader() == "a" ? "b" : "a";
  REQUIRE(await([&] { return boxes[dying].metric("pbox_rx_packets_total") > 500; }));
  boxes[dying].program().signal(SIGKILL);
  boxes.remove(dying);
  const Outcome outcome = collect(ranks);
  CHECK(outcome.distance < 2 * bound_of(plan));
  CHECK(boxes.all().front()->metric("pbox_optimizer_restarts_total") == 0);
}

TEST_CASE("a process in a lost rank's place takes the weights that the others have") {
  const Daemon daemon;
  const Plan plan{.box = daemon.control(), .stops_at = 17};
  auto ranks = start(plan);
  REQUIRE(ranks.back().heard() == "stopped");
  ranks.pop_back();
  Plan again = plan;
  again.stops_at = UINT32_MAX;
  again.rejoins = true;
  ranks.emplace_back([&again](Line& line) { run_rank(again, 1, line); });
  REQUIRE(ranks.back().heard() == "joined");
  ranks.back().go();
  // The residue of the lost process is lost.
  CHECK(collect(ranks).distance < 2 * bound_of(plan));
}

}  // namespace pbox::test
