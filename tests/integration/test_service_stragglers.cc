// A stopped rank is named by the box's ledger, by pboxctl and by the other ranks' errors, both
// while it is stopped and afterwards.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kRanks = 3;
constexpr uint32_t kStopped = 2;
constexpr auto kStop = std::chrono::seconds(3);

// Starts the ranks of a job with one tensor. After a few rounds all say "running". Then kStopped is
// stopped, and the others begin a round that they cannot finish until it continues.
std::vector<WorkerProcess> start_ranks(const Daemon& daemon) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    workers.emplace_back([&daemon, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = kRanks});
      worker.tensor("embedding", 50'000);
      worker.join();
      std::vector<float> values(50'000, 1.0f);
      const auto round = [&] {
        values.assign(values.size(), 1.0f);
        worker.push_pull(0, values.data(), values.data());
      };
      for (int count = 0; count < 5; ++count) {
        round();
        worker.wait(0);
      }
      line.say("running");
      line.await_go();
      round();
      if (rank != kStopped) {
        line.say(worker.must_be(PBOX_TIMEOUT, pbox_wait(worker.context(), 0, 2500)));
      }
      worker.wait(0);
      require(values[49'999] == kRanks, "a wrong sum");
      line.say("done");
      line.await_go();
      worker.leave();
    });
  }
  return workers;
}

// Returns the job's object from GET /api/v1/stragglers.
Json ledger(const Daemon& daemon) {
  return Json::parse(daemon.get("/api/v1/stragglers"))["jobs"].at(0);
}

const Json& of_rank(const Json& job, uint32_t rank) {
  for (const Json& view : job["ranks"]) {
    if (view["rank"] == rank) return view;
  }
  throw std::runtime_error("the ledger lacks rank " + std::to_string(rank));
}

std::string output_of(const Arguments& arguments, const Daemon& daemon) {
  const Output output = ask(daemon, PBOX_CTL_PATH, arguments);
  CHECK(output.status == 0);
  return output.text;
}

}  // namespace

TEST_CASE(
    "a rank that is stopped for three seconds is named by the ledger, by pboxctl and by errors") {
  Daemon daemon;
  auto workers = start_ranks(daemon);
  for (auto& worker : workers) REQUIRE(worker.heard() == "running");
  workers[kStopped].signal(SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  workers[0].go();
  workers[1].go();
  for (const uint32_t rank : {0u, 1u}) {
    const auto error = workers[rank].heard();
    REQUIRE(error.has_value());
    INFO(*error);
    CHECK(error->find("'embedding' is not complete after 2500 ms") != std::string::npos);
    CHECK(error->find("rank 2 is late; the box has waited ") != std::string::npos);
  }

  const Json waiting = ledger(daemon);
  INFO(waiting.dump(2));
  REQUIRE(waiting["awaited"].size() == 1);
  CHECK(waiting["awaited"][0]["rank"] == kStopped);
  CHECK(waiting["awaited"][0]["tensor"] == "embedding");
  CHECK(waiting["awaited"][0]["round"] == 5);
  CHECK(waiting["awaited"][0]["waited_seconds"] > 1.0);
  const std::string now = output_of({"stragglers"}, daemon);
  INFO(now);
  CHECK(now.find("waits for rank 2 (") != std::string::npos);
  CHECK(now.find("tensor 'embedding', round 5") != std::string::npos);
  CHECK(daemon.get("/metrics")
            .find("pbox_worker_awaited_seconds{training_job=\"job\",rank=\"0\"} 0\n") !=
        std::string::npos);
  CHECK(daemon.metric("pbox_worker_awaited_seconds", "rank=\"2\"") >= 1);

  std::this_thread::sleep_until(stopped + kStop);
  workers[kStopped].signal(SIGCONT);
  workers[kStopped].go();
  for (auto& worker : workers) CHECK(worker.heard() == "done");

  const Json after = ledger(daemon);
  INFO(after.dump(2));
  const Json& late = of_rank(after, kStopped);
  CHECK(after["ranks"][0]["rank"] == kStopped);
  CHECK(late["worst_late_seconds"] > 1.0);
  CHECK(late["worst_tensor"] == "embedding");
  CHECK(late["worst_round"] == 5);
  CHECK(late["late_seconds"] >= late["worst_late_seconds"]);
  for (const uint32_t rank : {0u, 1u}) {
    CHECK(of_rank(after, rank)["worst_late_seconds"] < late["worst_late_seconds"]);
  }
  CHECK(after["tensors"][0]["tensor"] == "embedding");
  CHECK(after["tensors"][0]["worst_rank"] == kStopped);
  CHECK(after["tensors"][0]["worst_round"] == 5);
  CHECK(after["rounds"][0]["round"] == 5);
  CHECK(after["rounds"][0]["rank"] == kStopped);
  CHECK(after["rounds"][0]["late_seconds"] > 1.0);
  const Json told = Json::parse(output_of({"stragglers", "-o", "json"}, daemon));
  CHECK(told["jobs"][0]["ranks"][0]["rank"] == kStopped);
  CHECK(output_of({"stragglers"}, daemon).find("\n  2 ") != std::string::npos);

  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("a box that was stopped says so, loses no rank and blames none") {
  // The box is stopped for longer than a round may be late, but not for so long that its workers
  // give it up and join again. test_job_registry_run.cc has the time that workers may be silent.
  Daemon daemon({"--control.worker_dead_after_ms=60000", "--recorder.late_after_ms=2000"});
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&daemon, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = 2});
      std::vector<float> values(50'000, 1.0f);
      worker.tensor("embedding", values.size());
      worker.join();
      worker.push_pull(0, values.data(), values.data());
      worker.wait(0);
      line.say("running");
      line.await_go();
      values.assign(values.size(), 1.0f);
      worker.push_pull(0, values.data(), values.data());
      line.say("pushed");
      worker.wait(0);
      require(values.back() == 2, "a wrong sum");
      line.say("done");
      line.await_go();
      worker.leave();
    });
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "running");
  workers[0].go();
  REQUIRE(workers[0].heard() == "pushed");
  const auto is_awaited = [&] { return !ledger(daemon)["awaited"].empty(); };
  for (int count = 0; count < 3000 && !is_awaited(); ++count) usleep(10'000);
  REQUIRE(is_awaited());
  daemon.program().signal(SIGSTOP);
  workers[1].go();
  CHECK(workers[1].heard() == "pushed");
  std::this_thread::sleep_for(kStop);
  daemon.program().signal(SIGCONT);
  for (auto& worker : workers) CHECK(worker.heard() == "done");

  REQUIRE(daemon.program().await_errors("box_stood_still", kDeadlineMs));
  const std::string log = daemon.program().errors();
  CHECK_THAT(log, Catch::Contains("this box did not run for "));
  CHECK_THAT(log, !Catch::Contains("late_round") && !Catch::Contains("worker_lost"));
  const Json after = ledger(daemon);
  INFO(after.dump(2));
  const double stopped_s = std::chrono::duration<double>(kStop).count();
  CHECK(of_rank(after, 1)["worst_late_seconds"] < stopped_s);
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("pboxctl stragglers reports a box without jobs, and says what to do if there is no box") {
  Daemon daemon;
  CHECK(output_of({"stragglers"}, daemon) == "this box has no jobs\n");
  Program nowhere(PBOX_CTL_PATH, {"stragglers", "--admin", "127.0.0.1:1"});
  CHECK(nowhere.wait_exit(kDeadlineMs) == 1);
  CHECK(nowhere.errors().find("give the HOST:PORT that pboxd prints as admin=") !=
        std::string::npos);
}

TEST_CASE("a silent rank of a job whose ranks run ahead of each other is named too") {
  const Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    workers.emplace_back([&daemon, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(),
                        .rank = rank,
                        .world_size = kRanks,
                        .adjust = [](pbox_options& options) {
                          options.mode = PBOX_MODE_OPTIMIZE;
                          options.recovery = PBOX_RECOVERY_NONE;
                          options.sync = PBOX_SYNC_ASP;
                        }});
      const uint32_t tensor = worker.tensor("embedding", 50'000);
      const std::vector<float> gradient(50'000, 1);
      std::vector<float> weights(50'000);
      worker.join_with_sgd(1, tensor, weights);
      for (const char* said : {"joined", "done"}) {
        for (int count = 0; count < 3; ++count) {
          worker.push_pull(tensor, gradient.data(), weights.data());
          worker.wait(tensor);
        }
        line.say(said);
        line.await_go();
      }
      worker.leave();
    });
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "joined");
  for (const uint32_t rank : {0u, 1u}) {
    workers[rank].go();
    REQUIRE(workers[rank].heard() == "done");
  }
  REQUIRE(await([&] { return daemon.metric("pbox_worker_awaited_seconds", "rank=\"2\"") >= 1; }));
  const Json waiting = ledger(daemon);
  INFO(waiting.dump(2));
  REQUIRE(waiting["awaited"].size() == 1);
  CHECK(waiting["awaited"][0]["rank"] == kStopped);
  CHECK(waiting["awaited"][0]["tensor"] == "embedding");
  CHECK(output_of({"stragglers"}, daemon).find("waits for rank 2 (") != std::string::npos);
  workers[kStopped].go();
  REQUIRE(workers[kStopped].heard() == "done");
  CHECK(daemon.metric("pbox_worker_late_seconds_total", "rank=\"2\"") >= 1);
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

}  // namespace pbox::test
