// Elastic jobs: they begin with some of their ranks, and the others join while they run.
#include <signal.h>

#include <catch2/catch.hpp>
#include <memory>

#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;

constexpr uint64_t kElements = 40'000;  // five chunks
constexpr uint32_t kRanks = 3;

struct Part {
  uint32_t rank = 0;
  uint32_t min_world_size = 2;
  pbox_lost on_worker_lost = PBOX_LOST_PARTIAL;
  bool optimizes = false;
  uint32_t join_timeout_ms = 60'000;
};

AbiWorker part_of(const std::string& box, const Part& part) {
  return AbiWorker(
      {.box = box, .rank = part.rank, .world_size = kRanks, .adjust = [&](pbox_options& options) {
         options.min_world_size = part.min_world_size;
         options.on_worker_lost = part.on_worker_lost;
         options.lost_timeout_ms = 300;
         options.join_timeout_ms = part.join_timeout_ms;
         options.reduction = PBOX_MEAN;
         if (part.optimizes) options.mode = PBOX_MODE_OPTIMIZE;
       }});
}

// The values of rank 0, 1, 2, ... and the mean of the first `ranks` of them.
float value_of(uint32_t rank) {
  return static_cast<float>(4 * (rank + 1));
}
float mean_of(uint32_t ranks) {
  return 2 * static_cast<float>(ranks + 1);
}

uint32_t round_of(const AbiWorker& worker) {
  uint32_t round = 0;
  worker.must(pbox_tensor_round(worker.context(), 0, &round));
  return round;
}

// Runs a round. Returns how many of the first ranks are in every element of the mean; 0 if not all
// elements have the same, as happens in the round in which a rank joins.
uint32_t ranks_in_round(const AbiWorker& worker, uint32_t rank) {
  const std::vector<float> input(kElements, value_of(rank));
  std::vector<float> output(kElements);
  worker.push_pull(0, input.data(), output.data());
  worker.wait(0);
  uint32_t least = kRanks, most = 0;
  for (const float mean : output) {
    const auto ranks = static_cast<uint32_t>(mean / 2) - 1;
    require(mean == mean_of(ranks) && ranks >= 1 && ranks <= kRanks,
            "a mean of " + std::to_string(mean));
    least = std::min(least, ranks);
    most = std::max(most, ranks);
  }
  uint32_t contributors = 0;
  worker.must(pbox_contributors(worker.context(), 0, &contributors));
  require(contributors == least, "contributors differ from the mean");
  return least == most ? least : 0;
}

// Runs rounds until the first `ranks` ranks have been in 20 of them.
void run_until(const AbiWorker& worker, uint32_t rank, uint32_t ranks) {
  for (uint32_t seen = 0; seen < 20;) seen += ranks_in_round(worker, rank) == ranks ? 1 : 0;
}

// A rank's process: for each number in [from, to], says when that many ranks have been in 20
// rounds.
void run_part(Line& line, const std::string& box, const Part& part, uint32_t from, uint32_t to) {
  const AbiWorker worker = part_of(box, part);
  worker.tensor("t", kElements);
  worker.join();
  for (uint32_t ranks = from; ranks <= to; ++ranks) {
    run_until(worker, part.rank, ranks);
    line.say(std::to_string(ranks) + " ranks, rounds: " + (round_of(worker) > 0 ? "some" : "none"));
  }
  worker.leave();
  line.say("well");
}

std::string refusal(const std::string& box, const Part& part, pbox_status expected) {
  WorkerProcess process([&](Line& line) {
    const AbiWorker worker = part_of(box, part);
    worker.tensor("t", kElements);
    line.say(worker.must_be(expected, pbox_join(worker.context())));
  });
  const auto said = process.heard();
  CHECK(process.finish() == "");
  return said.value_or("nothing");
}

}  // namespace

TEST_CASE("a job begins with some of its ranks, and means follow those that come later") {
  Daemon daemon;
  const std::string& box = daemon.control();
  std::vector<WorkerProcess> workers;
  const auto start = [&](uint32_t rank, uint32_t min_world_size, uint32_t from) {
    workers.emplace_back([&box, rank, min_world_size, from](Line& line) {
      run_part(line, box, {.rank = rank, .min_world_size = min_world_size}, from, kRanks);
    });
  };
  start(0, 1, 1);
  CHECK(workers[0].heard() == "1 ranks, rounds: some");
  start(1, 1, 2);
  CHECK(workers[0].heard() == "2 ranks, rounds: some");
  CHECK(workers[1].heard() == "2 ranks, rounds: some");
  start(2, 1, 3);
  for (auto& worker : workers) CHECK(worker.heard() == "3 ranks, rounds: some");
  for (auto& worker : workers) CHECK(worker.heard() == "well");
  CHECK(daemon.metric("pbox_jobs_finished_total") == 1);
  CHECK(daemon.metric("pbox_workers_excluded_total") == 0);
}

TEST_CASE("a rank of an elastic job that is killed may be replaced without being asked to rejoin") {
  Daemon daemon;
  const std::string& box = daemon.control();
  const auto body = [&](uint32_t rank, uint32_t from, uint32_t to) {
    return [&box, rank, from, to](Line& line) { run_part(line, box, {.rank = rank}, from, to); };
  };
  WorkerProcess first([&](Line& line) {
    const AbiWorker worker = part_of(box, {});
    worker.tensor("t", kElements);
    worker.join();
    for (const uint32_t ranks : {3u, 2u, 3u}) {
      run_until(worker, 0, ranks);
      line.say(std::to_string(ranks) + " ranks");
    }
    worker.leave();
  });
  WorkerProcess second([&](Line&) {
    const AbiWorker worker = part_of(box, {.rank = 1});
    worker.tensor("t", kElements);
    worker.join();
    for (const uint32_t ranks : {3u, 2u, 3u}) run_until(worker, 1, ranks);
    worker.leave();
  });
  WorkerProcess third(body(2, 3, 4));  // never sees four ranks
  CHECK(first.heard() == "3 ranks");
  third.signal(SIGKILL);
  third.finish();
  CHECK(first.heard() == "2 ranks");
  CHECK(daemon.metric("pbox_workers_excluded_total") == 1);
  WorkerProcess again(body(2, 3, 3));
  CHECK(first.heard() == "3 ranks");
  CHECK(again.heard() == "3 ranks, rounds: some");
  CHECK(again.finish() == "");
  CHECK(first.finish() == "");
  CHECK(second.finish() == "");
}

TEST_CASE("when every rank of an elastic job is lost, the next ones begin a new run") {
  Daemon daemon;
  const std::string& box = daemon.control();
  const auto run = [&] {
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.emplace_back([&box, rank](Line& line) {
        const AbiWorker worker = part_of(box, {.rank = rank});
        worker.tensor("t", kElements);
        worker.join();
        line.say("round " + std::to_string(round_of(worker)));
        run_until(worker, rank, 2);
        line.say("ran");
        line.await_go();
      });
    }
    for (auto& worker : workers) CHECK(worker.heard() == "round 0");
    for (auto& worker : workers) CHECK(worker.heard() == "ran");
    for (auto& worker : workers) worker.signal(SIGKILL);
    for (auto& worker : workers) worker.finish();
  };
  run();
  REQUIRE(await([&] { return daemon.metric("pbox_workers_lost_total") >= 2; }));
  run();
}

TEST_CASE("in mode optimize a rank that comes receives the weights, and rank 0 must be there") {
  Daemon daemon;
  const std::string& box = daemon.control();
  const auto body = [&](Line& line, uint32_t rank, uint32_t steps_of_all) {
    const AbiWorker worker = part_of(box, {.rank = rank, .min_world_size = 1, .optimizes = true});
    const uint32_t tensor = worker.tensor("t", kElements);
    std::vector<float> weights(kElements, rank == 0 ? 1000.0f : -1.0f);
    worker.join_with_sgd(1, tensor, weights);
    line.say("at " + std::to_string(round_of(worker) > 1));
    // Each rank pushes the same gradient, so the weights tell the number of steps.
    const std::vector<float> gradient(kElements, 1.0f);
    uint32_t seen = 0;
    for (uint32_t contributors = 0; seen < steps_of_all;) {
      const float before = weights[7];
      worker.push_pull(tensor, gradient.data(), weights.data());
      worker.wait(tensor);
      for (const float weight : weights) require(weight == before - 1, "a weight");
      worker.must(pbox_contributors(worker.context(), tensor, &contributors));
      seen += contributors == 2 ? 1 : 0;
    }
    line.say(std::to_string(weights[7] == 1000.0f - static_cast<float>(round_of(worker) - 1)));
    worker.leave();
  };
  WorkerProcess late([&](Line& line) { body(line, 1, 20); });
  CHECK(late.heard(4000) == std::nullopt);  // min_world_size is 1, but it has no weights
  WorkerProcess first([&](Line& line) { body(line, 0, 20); });
  CHECK(first.heard() == "at 0");
  CHECK(late.heard() == "at 0");
  CHECK(first.heard() == "1");
  CHECK(late.heard() == "1");
}

TEST_CASE("an elastic job goes on without its absent ranks when its box is killed") {
  MortalBox box;
  const std::string where = box.daemon().control();
  const auto body = [&](Line& line, uint32_t rank) {
    const AbiWorker worker = part_of(where, {.rank = rank});
    worker.tensor("t", kElements);
    worker.join();
    line.say("joined");
    if (rank < 2) {
      while (worker.statistics().recoveries == 0) {
        require(ranks_in_round(worker, rank) == 2, "a third rank");
      }
      run_until(worker, rank, 2);
      line.say("goes on");
    }
    run_until(worker, rank, 3);
    worker.leave();
    line.say("well");
  };
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) { body(line, rank); });
  }
  for (auto& worker : workers) CHECK(worker.heard() == "joined");
  box.kill();
  box.start_again();
  for (auto& worker : workers) CHECK(worker.heard() == "goes on");
  workers.emplace_back([&](Line& line) { body(line, 2); });
  CHECK(workers[2].heard() == "joined");
  for (auto& worker : workers) CHECK(worker.heard() == "well");
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
}

TEST_CASE("an elastic job that waits for lost ranks, or has too few, is refused with the reason") {
  Daemon daemon;
  const std::string& box = daemon.control();
  CHECK_THAT(refusal(box, {.on_worker_lost = PBOX_LOST_WAIT}, PBOX_INVALID_ARGUMENT),
             Contains("min_world_size 2 needs on_worker_lost partial"));
  CHECK_THAT(refusal(box, {.join_timeout_ms = 500}, PBOX_TIMEOUT),
             Contains("ranks 1, 2") && Contains("the job begins with min_world_size 2"));
}

}  // namespace pbox::test
