// The C ABI against a real box: callbacks, statistics, wrong usage, fork().
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// Runs one body as a job of one rank. Returns the error; empty if there was none.
std::string run_alone(const Daemon& daemon, const std::function<void(Line&)>& body) {
  static_cast<void>(daemon);
  return WorkerProcess(body).finish();
}

struct Calls {
  std::atomic<int> count{0};
  std::atomic<int> failed{0};
  std::atomic<uint32_t> tensors{0};
  pbox_context* context = nullptr;
  float* again = nullptr;  // pushed once more from the callback; null for no second push
};

void on_done(void* user, uint32_t tensor, pbox_status status) {
  auto& calls = *static_cast<Calls*>(user);
  calls.tensors |= 1u << tensor;
  if (status != PBOX_OK) ++calls.failed;
  if (calls.again != nullptr) {
    float* values = calls.again;
    calls.again = nullptr;
    pbox_push_pull(calls.context, tensor, values, values, on_done, user);
  }
  ++calls.count;
}

void await_calls(const Calls& calls, int count) {
  for (int waited_ms = 0; calls.count < count && waited_ms < 30'000; ++waited_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(calls.count == count, "callbacks: " + std::to_string(calls.count.load()));
}

}  // namespace

TEST_CASE("each operation calls its callback once, and a callback may start the next one") {
  Daemon daemon;
  const auto failure = run_alone(daemon, [&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(5000, 2.0f), others(3, 1.0f);
    worker.tensor("a", values.size());
    worker.tensor("b", others.size());
    worker.join();
    Calls calls;
    calls.context = worker.context();
    calls.again = values.data();
    worker.must(pbox_push_pull(worker.context(), 0, values.data(), values.data(), on_done, &calls));
    await_calls(calls, 2);
    worker.must(pbox_push_pull_priority(worker.context(), 1, others.data(), others.data(), 9,
                                        on_done, &calls));
    await_calls(calls, 3);
    require(calls.failed == 0 && calls.tensors == 3, "wrong callbacks");
  });
  CHECK(failure == "");
}

TEST_CASE("an operation in flight when its worker leaves is completed as closed") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = 2});
      float value = 1;
      worker.tensor("t", 1);
      worker.join();
      if (rank == 1) {
        line.await_go();
        return;
      }
      Calls calls;
      worker.must(pbox_push_pull(worker.context(), 0, &value, &value, on_done, &calls));
      worker.leave();
      require(calls.count == 1 && calls.failed == 1, "the callback was not called");
      worker.must_be(PBOX_CLOSED, pbox_wait(worker.context(), 0, 0));
    });
  }
  CHECK(workers[0].finish() == "");
  workers[1].go();
  CHECK(workers[1].finish() == "");
}

TEST_CASE("statistics count what was done, and respect the caller's size of the struct") {
  Daemon daemon;
  const auto failure = run_alone(daemon, [&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(10'000, 1.0f);
    worker.tensor("t", values.size());
    worker.join();
    for (int round = 0; round < 5; ++round) {
      worker.push_pull(0, values.data(), values.data());
      worker.wait(0);
    }
    const auto full = worker.statistics();
    require(full.bytes_pushed == 200'000 && full.bytes_pulled == 200'000, "bytes");
    require(full.operations_completed == 5 && full.operations_failed == 0, "operations");
    require(full.packets_sent >= 10 && full.packets_received >= 10, "packets");
    require(full.pipeline_count == 2 && full.fragment_bytes == 32768, "session");
    pbox_statistics old{};
    old.struct_size = offsetof(pbox_statistics, packets_sent);  // an older caller's struct
    old.packets_sent = 4711;
    worker.must(pbox_get_statistics(worker.context(), &old));
    require(old.bytes_pulled == 200'000 && old.packets_sent == 4711, "written beyond its size");
  });
  CHECK(failure == "");
}

TEST_CASE("a timeline has every chunk that was completed since recording started") {
  Daemon daemon;
  const auto failure = run_alone(daemon, [&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(10'000);
    worker.tensor("t", values.size());
    worker.join();
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    worker.must(pbox_trace_chunks(worker.context(), 100));
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    std::vector<pbox_chunk_times> times(100);
    uint32_t count = 100;
    worker.must(pbox_take_chunk_times(worker.context(), times.data(), &count));
    require(count == 2, std::to_string(count) + " chunks, expected 2");  // 40,000 bytes
    for (uint32_t index = 0; index < count; ++index) {
      const pbox_chunk_times& one = times[index];
      require(one.tensor == 0 && one.round == 1, "chunk");
      require(one.pushed_ns > 0 && one.pushed_ns <= one.sent_ns && one.sent_ns <= one.answered_ns &&
                  one.answered_ns <= one.completed_ns,
              "order");
    }
  });
  CHECK(failure == "");
}

TEST_CASE("wrong usage is refused with the mistake and the remedy") {
  Daemon daemon;
  const auto failure = run_alone(daemon, [&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    pbox_context* context = worker.context();
    std::vector<float> values(100);
    uint32_t id = 0;
    const auto refused = [&](pbox_status expected, pbox_status actual, const std::string& words) {
      require_contains(worker.must_be(expected, actual), words);
    };
    const auto push = [&](uint32_t tensor, const void* in, void* out) {
      return pbox_push_pull(context, tensor, in, out, nullptr, nullptr);
    };
    refused(PBOX_INVALID_ARGUMENT, pbox_join(context), "no tensor is registered");
    refused(PBOX_INVALID_ARGUMENT, push(0, values.data(), values.data()), "call pbox_join first");
    refused(PBOX_INVALID_ARGUMENT, pbox_barrier(context, 0), "call pbox_join first");
    refused(PBOX_INVALID_ARGUMENT, pbox_register_tensor(context, "", 1, PBOX_F32, 0, &id),
            "1 to 256");
    refused(PBOX_INVALID_ARGUMENT, pbox_register_tensor(context, "e", 0, PBOX_F32, 0, &id),
            "'e' has no elements");
    refused(PBOX_INVALID_ARGUMENT,
            pbox_register_tensor(context, "h", uint64_t{1} << 62, PBOX_F32, 0, &id),
            "'h' has 4611686018427387904 elements; give at most 17592186044416");
    refused(PBOX_INVALID_ARGUMENT, pbox_register_tensor(context, nullptr, 1, PBOX_F32, 0, &id),
            "name");
    refused(PBOX_INVALID_ARGUMENT,
            pbox_register_tensor(context, "d", 1, static_cast<pbox_dtype>(9), 0, &id), "dtype 9");
    worker.tensor("t", values.size());
    pbox_optimizer_options optimizer;
    pbox_optimizer_options_init(&optimizer, PBOX_SGD);
    refused(PBOX_INVALID_ARGUMENT, pbox_set_optimizer(context, &optimizer), "PBOX_MODE_OPTIMIZE");
    refused(PBOX_INVALID_ARGUMENT, pbox_set_tensor_optimizer(context, 5, 1, 0), "tensor 5");
    refused(PBOX_INVALID_ARGUMENT, pbox_set_tensor_optimizer(context, 0, -1, 0), "lr_scale");
    worker.join();
    refused(PBOX_INVALID_ARGUMENT, pbox_join(context), "already joined");
    refused(PBOX_INVALID_ARGUMENT, pbox_register_tensor(context, "x", 1, PBOX_F32, 0, &id),
            "before pbox_join");
    refused(PBOX_INVALID_ARGUMENT, push(7, values.data(), values.data()), "tensor 7 is unknown");
    refused(PBOX_INVALID_ARGUMENT, push(0, nullptr, values.data()), "NULL");
    refused(PBOX_INVALID_ARGUMENT, pbox_wait(context, 7, 0), "tensor 7 is unknown");
    refused(PBOX_INVALID_ARGUMENT, pbox_set_learning_rate(context, 1), "only in mode optimize");
    const int32_t priority = 1;
    refused(PBOX_INVALID_ARGUMENT, pbox_set_priorities(context, 3, nullptr), "priority_policy 3");
    refused(PBOX_INVALID_ARGUMENT, pbox_set_priorities(context, PBOX_PRIORITY_FIFO, &priority),
            "PBOX_PRIORITY_EXPLICIT");
    refused(PBOX_INVALID_ARGUMENT, pbox_init_weights(context, 0, values.data(), nullptr, nullptr),
            "aggregate");
    pbox_statistics statistics{};
    refused(PBOX_INVALID_ARGUMENT, pbox_get_statistics(context, &statistics), "struct_size");
    uint32_t count = 1;
    refused(PBOX_INVALID_ARGUMENT, pbox_take_chunk_times(context, nullptr, &count), "NULL");
    worker.leave();
    worker.must(pbox_leave(context));  // leaving twice is not an error
    refused(PBOX_CLOSED, push(0, values.data(), values.data()), "left the job");
  });
  CHECK(failure == "");
}

TEST_CASE("contexts with invalid options are not created, and the thread's last error says why") {
  pbox_context* context = nullptr;
  pbox_options options{};
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("pbox_options_init"));
  pbox_options_init(&options);
  options.rank = 3;
  options.world_size = 3;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("rank 3 must be below world_size 3"));
  options.rank = 0;
  options.mode = 3;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("mode 3 is unknown"));
  options.mode = PBOX_MODE_OPTIMIZE;
  options.reduction = -1;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("reduction -1 is unknown"));
  options.reduction = PBOX_SUM;
  options.recovery = 2;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("recovery 2 is unknown"));
  options.recovery = PBOX_RECOVERY_NONE;
  options.on_worker_lost = 3;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("on_worker_lost 3 is unknown"));
  options.on_worker_lost = PBOX_LOST_ABORT;
  options.rejoin = 2;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("rejoin 2 must be 0 or 1"));
  options.rejoin = 0;
  options.priority_policy = 3;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("priority_policy 3 is unknown"));
  options.priority_policy = PBOX_PRIORITY_FIFO;
  options.delivery = -1;
  CHECK(pbox_create(&options, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("delivery -1 is unknown"));
  CHECK(context == nullptr);
  CHECK(pbox_join(nullptr) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("context is NULL"));
  pbox_destroy(nullptr);
}

TEST_CASE("recovery options may come from the environment, in the words of the manual") {
  const auto read = [](const char* name, const char* text, pbox_options* options) {
    setenv(name, text, 1);
    const pbox_status status = pbox_options_from_environment(options);
    unsetenv(name);
    return status;
  };
  pbox_options options;
  CHECK(pbox_options_from_environment(&options) == PBOX_OK);
  CHECK(options.recovery == PBOX_RECOVERY_COPY);
  CHECK(options.recover_timeout_ms == 60'000);
  CHECK(options.on_worker_lost == PBOX_LOST_WAIT);
  CHECK(options.rejoin == 0);
  CHECK(read("PBOX_RECOVERY", "none", &options) == PBOX_OK);
  CHECK(options.recovery == PBOX_RECOVERY_NONE);
  CHECK(read("PBOX_RECOVER_TIMEOUT_MS", "1500", &options) == PBOX_OK);
  CHECK(options.recover_timeout_ms == 1500);
  CHECK(read("PBOX_ON_WORKER_LOST", "partial", &options) == PBOX_OK);
  CHECK(options.on_worker_lost == PBOX_LOST_PARTIAL);
  CHECK(read("PBOX_ON_WORKER_LOST", "abort", &options) == PBOX_OK);
  CHECK(options.on_worker_lost == PBOX_LOST_ABORT);
  CHECK(read("PBOX_REJOIN", "1", &options) == PBOX_OK);
  CHECK(options.rejoin == 1);
  CHECK(options.priority_policy == PBOX_PRIORITY_EXPLICIT);
  CHECK(options.delivery == PBOX_DELIVERY_BROADCAST);
  CHECK(read("PBOX_PRIORITY_POLICY", "forward-order", &options) == PBOX_OK);
  CHECK(options.priority_policy == PBOX_PRIORITY_FORWARD_ORDER);
  CHECK(read("PBOX_PRIORITY_POLICY", "fifo", &options) == PBOX_OK);
  CHECK(options.priority_policy == PBOX_PRIORITY_FIFO);
  CHECK(read("PBOX_DELIVERY", "pull", &options) == PBOX_OK);
  CHECK(options.delivery == PBOX_DELIVERY_PULL);
  CHECK(options.numerics == PBOX_NUMERICS_FAST);
  CHECK(read("PBOX_NUMERICS", "ordered", &options) == PBOX_OK);
  CHECK(options.numerics == PBOX_NUMERICS_ORDERED);
  CHECK(read("PBOX_NUMERICS", "exact", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(options.guard == PBOX_GUARD_FLAG);
  CHECK(read("PBOX_GUARD", "zero", &options) == PBOX_OK);
  CHECK(options.guard == PBOX_GUARD_ZERO);
  CHECK(read("PBOX_GUARD", "clamp", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(read("PBOX_GUARD_MAX_ABS", "2.5", &options) == PBOX_OK);
  CHECK(options.guard_max_abs == 2.5f);
  CHECK(read("PBOX_PRIORITY_POLICY", "lifo", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(read("PBOX_RECOVERY", "maybe", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(read("PBOX_ON_WORKER_LOST", "Wait", &options) == PBOX_INVALID_ARGUMENT);
}

TEST_CASE("priorities are learned, set by a rank or by the operator, and every rank continues") {
  Daemon daemon;
  const auto rank_part = [&](uint32_t rank, Line& line) {
    AbiWorker worker({.box = daemon.control(),
                      .job = "order",
                      .rank = rank,
                      .world_size = 2,
                      .adjust = [](pbox_options& options) {
                        options.priority_policy = PBOX_PRIORITY_FORWARD_ORDER;
                      }});
    std::vector<float> values[3];
    for (uint32_t tensor = 0; tensor < 3; ++tensor) {
      values[tensor].assign(20'000, 1);
      worker.tensor(std::to_string(tensor), values[tensor].size());
    }
    worker.join();
    const auto exchange = [&] {
      for (const uint32_t tensor : {2u, 1u, 0u}) {
        worker.push_pull(tensor, values[tensor].data(), values[tensor].data());
      }
      worker.wait_all();
      worker.must(pbox_barrier(worker.context(), 0));
    };
    exchange();
    exchange();
    line.say("learned");
    line.await_go();
    const int32_t by_tensor[] = {7, 8, 9};
    if (rank == 1) {
      worker.must(pbox_set_priorities(worker.context(), PBOX_PRIORITY_EXPLICIT, by_tensor));
    }
    exchange();
    line.say("set");
    line.await_go();
    exchange();
    for (const float value : values[1]) require(value == 16, "a wrong sum");
    worker.leave();
  };
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) { rank_part(rank, line); });
  }
  const auto shows = [&](const char* source) {
    const std::string job = daemon.get("/api/v1/jobs/order");
    CHECK_THAT(job, Catch::Contains(source));
  };
  for (auto& worker : workers) REQUIRE(worker.heard() == "learned");
  shows("\"priority_source\": \"learned\"");
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) REQUIRE(worker.heard() == "set");
  shows("\"priority_source\": \"set\"");
  const std::string answer = daemon.post("/api/v1/jobs/order/priorities", "{\"policy\": \"fifo\"}");
  CHECK_THAT(answer, Catch::Contains("\"priority_policy\": \"fifo\""));
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(daemon.program().await_errors("priority policy fifo, set by the operator", kDeadlineMs));
}

TEST_CASE("a tensor in flight is not started twice") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = 2});
      std::vector<float> values(100, 1.0f);
      worker.tensor("t", values.size());
      worker.join();
      if (rank == 1) line.await_go();
      worker.push_pull(0, values.data(), values.data());
      if (rank == 0) {
        require_contains(
            worker.must_be(PBOX_ALREADY_EXISTS, pbox_push_pull(worker.context(), 0, values.data(),
                                                               values.data(), nullptr, nullptr)),
            "'t' has an operation in flight");
        line.say("refused");
      }
      worker.wait(0);
      require(values[99] == 2.0f, "a wrong sum");
    });
  }
  CHECK(workers[0].heard() == "refused");
  workers[1].go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("a missing box or an invalid address is an error that contains the address") {
  const auto failure =
      WorkerProcess([](Line&) {
        for (const std::string box : {"127.0.0.1:1", "nonsense", "[::1", ":5"}) {
          AbiWorker worker(
              {.box = box, .adjust = [](auto& options) { options.join_timeout_ms = 2000; }});
          worker.tensor("t", 1);
          require_contains(
              worker.must_be(box == "127.0.0.1:1" ? PBOX_UNAVAILABLE : PBOX_INVALID_ARGUMENT,
                             pbox_join(worker.context())),
              box);
        }
      }).finish();
  CHECK(failure == "");
}

TEST_CASE(
    "a forked child that does not call the library changes nothing; one that does gets an error") {
  Daemon daemon;
  const auto failure = run_alone(daemon, [&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(20'000, 1.0f);
    worker.tensor("t", values.size());
    worker.join();
    const pid_t quiet = fork();
    if (quiet == 0) _exit(0);
    const pid_t caller = fork();
    if (caller == 0) {
      pbox_context* context = worker.context();
      const bool told = pbox_wait(context, 0, 10) == PBOX_FORKED &&
                        pbox_leave(context) == PBOX_FORKED &&
                        std::string(pbox_last_error(context)).find("forked") != std::string::npos;
      pbox_destroy(context);  // harmless in the child
      _exit(told ? 0 : 1);
    }
    for (const pid_t child : {quiet, caller}) {
      int status = -1;
      require(waitpid(child, &status, 0) == child && status == 0, "a child failed");
    }
    for (int round = 0; round < 5; ++round) {
      worker.push_pull(0, values.data(), values.data());
      worker.wait(0);
    }
    worker.leave();
  });
  CHECK(failure == "");
}

TEST_CASE("a killed worker is noticed although a child that it forked lives on") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker(
          {.box = daemon.control(), .rank = rank, .world_size = 2, .adjust = [](auto& options) {
             options.lost_timeout_ms = 100;
           }});
      float value = 1;
      worker.tensor("t", 1);
      worker.join();
      if (rank == 1) {
        const pid_t child = fork();
        if (child == 0) {
          sleep(120);
          _exit(0);
        }
        line.say(std::to_string(child));
        line.await_go();
      }
      const pbox_status status = worker.push_pull_and_wait(0, &value, &value);
      require_contains(worker.must_be(PBOX_WORKER_LOST, status), "rank 1");
    });
  }
  const auto child = workers[1].heard();
  REQUIRE(child);
  workers[1].signal(SIGKILL);
  // The deadline is below the box's time-out of 10 s for silent workers, so the closed connection
  // must have told the box.
  CHECK(workers[0].finish(8'000) == "");
  kill(std::stoi(*child), SIGKILL);
}

TEST_CASE("ranks pass a barrier together") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = 3});
      worker.tensor("t", 1);
      worker.join();
      worker.must(pbox_barrier(worker.context(), 0));
      if (rank == 2) line.await_go();
      if (rank == 0) {
        require_contains(worker.must_be(PBOX_TIMEOUT, pbox_barrier(worker.context(), 200)),
                         "not every rank");
        line.say("timed out");
      }
      if (rank != 0) worker.must(pbox_barrier(worker.context(), 0));
      if (rank == 1) worker.must(pbox_barrier(worker.context(), 0));
      if (rank != 1) worker.must(pbox_barrier(worker.context(), 0));
    });
  }
  CHECK(workers[0].heard() == "timed out");
  workers[2].go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

}  // namespace pbox::test
