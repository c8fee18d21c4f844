// Processes die, stop, leave and are slow. No rank waits without end, and errors name the culprit.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Body = std::function<void(uint32_t rank, AbiWorker& worker, Line& line)>;

// Workers of one job with two tensors (id 0: 50000 floats, id 1: 100), joined, all with the same
// body. The job does not outlive its box.
std::vector<WorkerProcess> start_job(const Daemon& daemon, uint32_t count, const Body& body,
                                     uint32_t lost_timeout_ms = 0) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < count; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(),
                        .rank = rank,
                        .world_size = count,
                        .adjust = [&](auto& options) {
                          options.lost_timeout_ms = lost_timeout_ms;
                          options.recovery = PBOX_RECOVERY_NONE;
                        }});
      worker.tensor("large", 50'000);
      worker.tensor("small", 100);
      worker.join();
      body(rank, worker, line);
    });
  }
  return workers;
}

struct Round {
  std::vector<float> large = std::vector<float>(50'000, 1.0f);
  std::vector<float> small = std::vector<float>(100, 1.0f);

  void start(const AbiWorker& worker) {
    worker.push_pull(0, large.data(), large.data());
    worker.push_pull(1, small.data(), small.data());
  }
};

void run_rounds(const AbiWorker& worker, int count) {
  for (int done = 0; done < count; ++done) {
    Round round;
    round.start(worker);
    worker.wait_all();
  }
}

// Runs rounds until the library reports `expected`; returns its message.
std::string run_until(const AbiWorker& worker, pbox_status expected) {
  for (;;) {
    Round round;
    pbox_status status = pbox_push_pull(worker.context(), 0, round.large.data(), round.large.data(),
                                        nullptr, nullptr);
    if (status == PBOX_OK) status = pbox_wait(worker.context(), 0, 0);
    if (status != PBOX_OK) return worker.must_be(expected, status);
  }
}

void require_all_well(std::vector<WorkerProcess>& workers) {
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

void require_serves(const Daemon& daemon) {
  REQUIRE(daemon.await_no_jobs(kDeadlineMs));
  const auto outcome = run_sums({.box = daemon.control(), .job = "next", .rounds = 2});
  CHECK(outcome.failure == "");
}

}  // namespace

TEST_CASE("when a worker is killed in the middle of a round, the others learn its rank") {
  Daemon daemon;
  auto workers = start_job(
      daemon, 3,
      [](uint32_t rank, AbiWorker& worker, Line& line) {
        run_rounds(worker, 3);
        Round round;
        if (rank == 1) {
          // the small tensor is never pushed
          worker.push_pull(0, round.large.data(), round.large.data());
          line.say("half way");
          line.await_go();
        }
        round.start(worker);
        line.say("waiting");
        const auto message = worker.must_be(PBOX_WORKER_LOST, pbox_wait_all(worker.context(), 0));
        require_contains(message, "rank 1");
        // The loss is final: later calls report it too.
        worker.must_be(PBOX_WORKER_LOST, pbox_barrier(worker.context(), 0));
      },
      400);
  CHECK(workers[1].heard() == "half way");
  CHECK(workers[0].heard() == "waiting");
  CHECK(workers[2].heard() == "waiting");
  const auto start = std::chrono::steady_clock::now();
  workers[1].signal(SIGKILL);
  CHECK(workers[0].finish() == "");
  CHECK(workers[2].finish() == "");
  // With policy wait the other ranks learn of the loss only after lost_timeout_ms.
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(350));
  require_serves(daemon);
}

TEST_CASE("when the box is killed, every waiting worker learns it at once") {
  Daemon daemon;
  auto workers = start_job(daemon, 2, [&](uint32_t, AbiWorker& worker, Line& line) {
    run_rounds(worker, 3);
    line.say("running");
    require_contains(run_until(worker, PBOX_BOX_LOST), daemon.control());
  });
  for (auto& worker : workers) CHECK(worker.heard() == "running");
  daemon.program().signal(SIGKILL);
  require_all_well(workers);
}

TEST_CASE("when the box stops answering, workers give up after worker_dead_after_ms") {
  Daemon daemon({"--control.heartbeat_interval_ms=200", "--control.worker_dead_after_ms=1000"});
  auto workers = start_job(daemon, 2, [](uint32_t, AbiWorker& worker, Line& line) {
    run_rounds(worker, 3);
    line.say("running");
    require_contains(run_until(worker, PBOX_BOX_LOST), "has not answered for");
  });
  for (auto& worker : workers) CHECK(worker.heard() == "running");
  daemon.program().signal(SIGSTOP);
  require_all_well(workers);
}

TEST_CASE("a wait that times out during reconnection says since when and why the box was lost") {
  Daemon daemon;
  WorkerProcess worker([&](Line& line) {
    // The worker looks for the box for longer than the test may take.
    AbiWorker worker({.box = daemon.control(), .adjust = [](pbox_options& options) {
                        options.recover_timeout_ms = 600'000;
                      }});
    worker.tensor("large", 50'000);
    worker.tensor("small", 100);
    worker.join();
    run_rounds(worker, 1);
    line.say("running");
    line.await_go();
    Round round;
    round.start(worker);
    const auto message = worker.must_be(PBOX_TIMEOUT, pbox_wait(worker.context(), 0, 900));
    require_contains(message, "'large' is not complete after 900 ms");
    require_contains(message, "box " + daemon.control() + " was lost");
    require_contains(message, "closed the connection); reconnecting");
    require_contains(worker.must_be(PBOX_TIMEOUT, pbox_barrier(worker.context(), 100)),
                     "reconnecting");
    worker.leave();  // returns at once, although no box is there
    worker.must_be(PBOX_CLOSED, pbox_wait_all(worker.context(), 0));
  });
  REQUIRE(worker.heard() == "running");
  daemon.program().signal(SIGKILL);
  worker.go();
  CHECK(worker.finish() == "");
}

TEST_CASE("a straggler is named by the wait that times out, and a later wait succeeds") {
  Daemon daemon;
  auto workers = start_job(daemon, 3, [](uint32_t rank, AbiWorker& worker, Line& line) {
    run_rounds(worker, 1);
    Round round;
    if (rank == 2) line.await_go();
    round.start(worker);
    if (rank != 2) {
      const auto message = worker.must_be(PBOX_TIMEOUT, pbox_wait(worker.context(), 0, 700));
      require_contains(message, "rank 2 is late");
      require_contains(message, "'large'");
      require_contains(message, "700 ms");
      line.say("timed out");
    }
    worker.wait_all();
    require(round.large[49'999] == 3.0f && round.small[99] == 3.0f, "a wrong sum");
    require(worker.statistics().operations_failed == 0,
            "a time-out was counted as a failed operation");
    worker.leave();
  });
  CHECK(workers[0].heard() == "timed out");
  CHECK(workers[1].heard() == "timed out");
  workers[2].go();
  require_all_well(workers);
}

TEST_CASE("when a rank leaves early, the ranks that wait for it learn its number") {
  Daemon daemon;
  auto workers = start_job(daemon, 3, [](uint32_t rank, AbiWorker& worker, Line&) {
    run_rounds(worker, 2);
    if (rank == 1) {
      worker.leave();
      worker.must_be(PBOX_CLOSED, pbox_barrier(worker.context(), 0));
      return;
    }
    require_contains(run_until(worker, PBOX_WORKER_LOST), "rank 1 left the job");
  });
  require_all_well(workers);
  require_serves(daemon);
}

TEST_CASE("on SIGTERM the daemon tells the workers and ends well within five seconds") {
  Daemon daemon({"--box.name=box-7"});
  auto workers = start_job(daemon, 2, [](uint32_t rank, AbiWorker& worker, Line& line) {
    run_rounds(worker, 1);
    line.say("running");
    Round round;
    if (rank == 0) round.start(worker);  // waits for rank 1, which waits at the barrier
    const pbox_status status =
        rank == 0 ? pbox_wait_all(worker.context(), 0) : pbox_barrier(worker.context(), 0);
    require_contains(worker.must_be(PBOX_BOX_LOST, status), "'box-7' is shutting down");
  });
  for (auto& worker : workers) CHECK(worker.heard() == "running");
  daemon.program().signal(SIGTERM);
  CHECK(daemon.program().wait_exit(5'000) == 0);
  require_all_well(workers);
}

TEST_CASE("a join that misses ranks ends with an error that names them") {
  Daemon daemon;
  WorkerProcess lonely([&](Line&) {
    AbiWorker worker(
        {.box = daemon.control(), .rank = 1, .world_size = 3, .adjust = [](auto& options) {
           options.join_timeout_ms = 300;
         }});
    worker.tensor("t", 1);
    const auto message = worker.must_be(PBOX_TIMEOUT, pbox_join(worker.context()));
    require_contains(message, "2 of 3 ranks");
    require_contains(message, "ranks 0, 2");
  });
  CHECK(lonely.finish() == "");
  require_serves(daemon);
}

}  // namespace pbox::test
