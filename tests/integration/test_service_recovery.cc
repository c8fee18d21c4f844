// A box is killed and started again, ranks are killed and replaced or excluded. Training continues,
// and every sum is the same as without the fault.
#include <signal.h>
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/mortal_box.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

void pause_ms(int duration_ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(duration_ms));
}

// Returns once workers push to this process of the box: they are in the middle of their rounds.
void await_rounds(const Daemon& daemon) {
  constexpr uint64_t kPackets = 500;
  REQUIRE(await([&] { return daemon.metric("pbox_rx_packets_total") > kPackets; }));
}

struct Part {
  uint32_t rank = 0;
  uint32_t world_size = 3;
  pbox_lost on_worker_lost = PBOX_LOST_WAIT;
  uint32_t lost_timeout_ms = 0;
  bool rejoin = false;
};

AbiWorker part_of(const std::string& box, const Part& part) {
  return AbiWorker({.box = box,
                    .rank = part.rank,
                    .world_size = part.world_size,
                    .adjust = [&](pbox_options& options) {
                      options.on_worker_lost = part.on_worker_lost;
                      options.lost_timeout_ms = part.lost_timeout_ms;
                      options.rejoin = part.rejoin ? 1 : 0;
                    }});
}

constexpr uint64_t kElements = 40'000;  // five chunks

float value_of(uint32_t rank, uint32_t round) {
  return static_cast<float>((rank + 1) * 100 + round % 50);
}

// Runs one round. Returns the sum, which must be the same in every element.
float sum_of_round(const AbiWorker& worker, uint32_t rank, uint32_t round) {
  const std::vector<float> input(kElements, value_of(rank, round));
  std::vector<float> output(kElements);
  worker.push_pull(0, input.data(), output.data());
  worker.wait(0);
  for (const float sum : output) require(sum == output[0], "the elements' sums differ");
  return output[0];
}

float expected_sum(const std::vector<uint32_t>& ranks, uint32_t round) {
  float sum = 0;
  for (const uint32_t rank : ranks) sum += value_of(rank, round);
  return sum;
}

uint32_t round_of(const AbiWorker& worker) {
  uint32_t round = 0;
  worker.must(pbox_tensor_round(worker.context(), 0, &round));
  return round;
}

}  // namespace

TEST_CASE("a job continues over a box that is killed again and again, with the same sums") {
  MortalBox box;
  auto workers = start_sums({.box = box.daemon().control(),
                             .workers = 3,
                             .elements = {1, 353, 8193, 300'007},
                             .rounds = 250,
                             .waits = true});
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  for (int crash = 0; crash < 3; ++crash) {
    await_rounds(box.daemon());
    box.kill();
    pause_ms(50 * crash);
    box.start_again();
    REQUIRE(box.daemon().metric("pbox_jobs_recovered_total") <= 1);
  }
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
  CHECK(box.daemon().metric("pbox_jobs_finished_total") == 1);
}

TEST_CASE("a box that is stopped in order and restarted continues its jobs") {
  MortalBox box;
  auto workers = start_sums({.box = box.daemon().control(),
                             .workers = 2,
                             .elements = {353, 100'007},
                             .rounds = 250,
                             .waits = true});
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  await_rounds(box.daemon());
  box.stop();
  box.start_again();
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
}

TEST_CASE("workers rejoin a box that was stopped for longer than they wait for it") {
  Daemon daemon({"--control.heartbeat_interval_ms=100", "--control.worker_dead_after_ms=500"});
  auto workers = start_sums({.box = daemon.control(), .workers = 2, .rounds = 150, .waits = true});
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  await_rounds(daemon);
  daemon.program().signal(SIGSTOP);
  pause_ms(1500);
  daemon.program().signal(SIGCONT);
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("a killed rank is replaced, and the others do not notice") {
  Daemon daemon;
  const std::string& box = daemon.control();
  constexpr uint32_t kRounds = 60;
  const auto body = [&](Line& line, const Part& part) {
    const AbiWorker worker = part_of(box, part);
    worker.tensor("t", kElements);
    worker.join();
    for (uint32_t round = round_of(worker); round < kRounds; ++round) {
      // pushes and does not wait for the result
      if (round == 20 && part.rank == 1 && !part.rejoin) {
        const std::vector<float> input(kElements, value_of(1, round));
        std::vector<float> output(kElements);
        worker.push_pull(0, input.data(), output.data());
        line.say("at round 20");
        line.await_go();
      }
      require(sum_of_round(worker, part.rank, round) == expected_sum({0, 1, 2}, round),
              "a wrong sum in round " + std::to_string(round));
    }
    worker.leave();
    line.say("well");
  };
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) { body(line, {.rank = rank}); });
  }
  CHECK(workers[1].heard() == "at round 20");
  workers[1].signal(SIGKILL);
  workers[1].finish();
  WorkerProcess again([&](Line& line) { body(line, {.rank = 1, .rejoin = true}); });
  CHECK(again.heard() == "well");
  CHECK(workers[0].heard() == "well");
  CHECK(workers[2].heard() == "well");
  CHECK(daemon.metric("pbox_workers_back_total") == 1);
}

TEST_CASE("a rank that dies together with the box is replaced too") {
  MortalBox box;
  const std::string where = box.daemon().control();
  constexpr uint32_t kRounds = 400;
  const auto body = [&](Line& line, const Part& part) {
    const AbiWorker worker = part_of(where, part);
    worker.tensor("t", kElements);
    worker.join();
    if (!part.rejoin) line.say("joined");
    for (uint32_t round = round_of(worker); round < kRounds; ++round) {
      require(sum_of_round(worker, part.rank, round) == expected_sum({0, 1, 2}, round),
              "a wrong sum in round " + std::to_string(round));
    }
    worker.leave();
    line.say("well");
  };
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) { body(line, {.rank = rank}); });
  }
  for (auto& worker : workers) CHECK(worker.heard() == "joined");
  await_rounds(box.daemon());
  workers[2].signal(SIGKILL);
  box.kill();
  workers[2].finish();
  box.start_again();
  WorkerProcess again([&](Line& line) { body(line, {.rank = 2, .rejoin = true}); });
  CHECK(again.heard() == "well");
  CHECK(workers[0].heard() == "well");
  CHECK(workers[1].heard() == "well");
}

TEST_CASE("policy partial continues without a killed rank and reports how many are left") {
  Daemon daemon;
  const std::string& box = daemon.control();
  const auto body = [&](Line& line, const Part& part) {
    const AbiWorker worker = part_of(box, part);
    worker.tensor("t", kElements);
    worker.join();
    uint32_t round = 0;
    for (; round < 5; ++round) {
      require(sum_of_round(worker, part.rank, round) == expected_sum({0, 1, 2}, round), "a sum");
    }
    if (part.rank == 1) {
      line.say("gone");
      line.await_go();
    }
    for (; round < 40; ++round) {
      require(sum_of_round(worker, part.rank, round) == expected_sum({0, 2}, round),
              "a wrong sum without rank 1 in round " + std::to_string(round));
      uint32_t contributors = 0;
      worker.must(pbox_contributors(worker.context(), 0, &contributors));
      require(contributors == 2, "contributors is not 2");
    }
    worker.leave();
    line.say("well");
  };
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      body(line, {.rank = rank, .on_worker_lost = PBOX_LOST_PARTIAL, .lost_timeout_ms = 300});
    });
  }
  CHECK(workers[1].heard() == "gone");
  workers[1].signal(SIGKILL);
  CHECK(workers[0].heard() == "well");
  CHECK(workers[2].heard() == "well");
  CHECK(daemon.metric("pbox_workers_excluded_total") == 1);
}

TEST_CASE("policy abort tells the others at once which rank was lost") {
  Daemon daemon;
  const std::string& box = daemon.control();
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      const Part part{
          .rank = rank, .on_worker_lost = PBOX_LOST_ABORT, .lost_timeout_ms = 1'000'000};
      const AbiWorker worker = part_of(box, part);
      worker.tensor("t", kElements);
      worker.join();
      sum_of_round(worker, rank, 0);
      line.say("running");
      if (rank == 1) line.await_go();
      const std::vector<float> input(kElements);
      std::vector<float> output(kElements);
      const pbox_status status = worker.push_pull_and_wait(0, input.data(), output.data());
      require_contains(worker.must_be(PBOX_WORKER_LOST, status), "rank 1");
    });
  }
  for (auto& worker : workers) CHECK(worker.heard() == "running");
  workers[1].signal(SIGKILL);
  CHECK(workers[0].finish() == "");
  CHECK(workers[2].finish() == "");
}

TEST_CASE(
    "in mode optimize a replacement rank fetches the weights, and the job survives a killed box") {
  MortalBox box;
  const std::string where = box.daemon().control();
  const auto body = [&](Line& line, bool rejoin, uint32_t rank) {
    AbiWorker worker(
        {.box = where, .rank = rank, .world_size = 2, .adjust = [&](pbox_options& options) {
           options.mode = PBOX_MODE_OPTIMIZE;
           options.rejoin = rejoin ? 1 : 0;
         }});
    worker.tensor("t", kElements);
    pbox_optimizer_options sgd;
    pbox_optimizer_options_init(&sgd, PBOX_SGD);
    sgd.learning_rate = 0.5f;
    worker.must(pbox_set_optimizer(worker.context(), &sgd));
    worker.join();
    if (!rejoin) worker.must(pbox_set_learning_rate(worker.context(), 1));
    std::vector<float> weights(kElements, rejoin ? -1.0f : 1000.0f);
    const uint32_t begun = round_of(worker);
    worker.must(pbox_init_weights(worker.context(), 0, weights.data(), nullptr, nullptr));
    worker.wait(0);
    const uint32_t done = rejoin ? begun - 1 : 0;
    require(weights[7] == 1000.0f - 3.0f * static_cast<float>(done),
            "initial weights are not the current ones");
    const std::vector<float> gradient(kElements, static_cast<float>(rank + 1));
    for (uint32_t step = done; step < 10; ++step) {
      if (step == 4 && rank == 1 && !rejoin) {
        line.say("four steps");
        line.await_go();
      }
      worker.push_pull(0, gradient.data(), weights.data());
      worker.wait(0);
      require(weights[7] == 1000.0f - 3.0f * static_cast<float>(step + 1), "a step");
    }
    line.say("ten steps");
    // Takes steps until the box has been lost and found again, and ten more. The results are exact,
    // because plain SGD has no state to lose.
    uint32_t left = 10;
    for (uint32_t step = 10; left > 0; ++step) {
      worker.push_pull(0, gradient.data(), weights.data());
      worker.wait(0);
      require(weights[7] == 1000.0f - 3.0f * static_cast<float>(step + 1), "a step");
      require(weights[7] == weights[kElements - 1], "chunks have different numbers of steps");
      if (worker.statistics().recoveries > 0) --left;
    }
    require(worker.statistics().optimizer_restarts == 0, "a restart of the optimizer was reported");
  };
  WorkerProcess first([&](Line& line) { body(line, false, 0); });
  WorkerProcess second([&](Line& line) { body(line, false, 1); });
  CHECK(second.heard() == "four steps");
  second.signal(SIGKILL);
  second.finish();
  WorkerProcess again([&](Line& line) { body(line, true, 1); });
  CHECK(again.heard() == "ten steps");
  CHECK(first.heard() == "ten steps");
  box.kill();
  box.start_again();
  CHECK(first.finish() == "");
  CHECK(again.finish() == "");
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
}

TEST_CASE("momentum is lost with a killed box, and the workers are told") {
  MortalBox box;
  WorkerProcess process([where = box.daemon().control()](Line& line) {
    AbiWorker worker(
        {.box = where, .rank = 0, .world_size = 1, .adjust = [](pbox_options& options) {
           options.mode = PBOX_MODE_OPTIMIZE;
         }});
    worker.tensor("t", kElements);
    pbox_optimizer_options momentum;
    pbox_optimizer_options_init(&momentum, PBOX_MOMENTUM);
    momentum.learning_rate = 1;
    // whole numbers: the n-th step after a restart of the state has length n
    momentum.momentum = 1;
    worker.must(pbox_set_optimizer(worker.context(), &momentum));
    worker.join();
    std::vector<float> weights(kElements, 0.0f);
    worker.must(pbox_init_weights(worker.context(), 0, weights.data(), nullptr, nullptr));
    worker.wait(0);
    const std::vector<float> gradient(kElements, -1.0f);
    float expected = 0;
    const auto steps = [&](uint32_t count) {
      for (uint32_t step = 1; step <= count; ++step) {
        worker.push_pull(0, gradient.data(), weights.data());
        worker.wait(0);
        expected += static_cast<float>(step);
        for (const float weight : weights) require(weight == expected, "a step");
      }
    };
    steps(5);
    line.say("five steps");
    line.await_go();
    steps(5);
    require(worker.statistics().recoveries == 1, "recoveries is not 1");
    require(worker.statistics().optimizer_restarts == 1, "optimizer_restarts is not 1");
  });
  CHECK(process.heard() == "five steps");
  box.kill();
  box.start_again();
  process.go();
  CHECK(process.finish() == "");
  CHECK(box.daemon().metric("pbox_optimizer_restarts_total") == 1);
}

}  // namespace pbox::test
