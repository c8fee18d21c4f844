// Lists of exchanges that are started with one call of the C ABI, against a real box.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

// Runs one body as a job of one rank. Returns the error; empty if there was none.
std::string run_alone(const std::function<void(Line&)>& body) {
  return WorkerProcess(body).finish();
}

struct Calls {
  std::atomic<int> count{0};
  std::atomic<int> failed{0};
  std::atomic<uint32_t> tensors{0};
};

void on_done(void* user, uint32_t tensor, pbox_status status) {
  auto& calls = *static_cast<Calls*>(user);
  calls.tensors |= 1u << tensor;
  if (status != PBOX_OK) ++calls.failed;
  ++calls.count;
}

void await_calls(const Calls& calls, int count) {
  for (int waited_ms = 0; calls.count < count && waited_ms < 30'000; ++waited_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(calls.count == count, "callbacks: " + std::to_string(calls.count.load()));
}

}  // namespace

TEST_CASE("many exchanges are one call, one callback, and all or none") {
  Daemon daemon;
  const auto failure = run_alone([&](Line&) {
    AbiWorker worker({.box = daemon.control()});
    std::vector<std::vector<float>> values;
    for (const size_t elements : {5000, 3, 70'000}) {
      values.emplace_back(elements, 2.0f);
      worker.tensor("t" + std::to_string(values.size()), elements);
    }
    worker.join();
    std::vector<pbox_operation> list(values.size());
    for (uint32_t tensor = 0; tensor < list.size(); ++tensor) {
      list[tensor].tensor_id = tensor;
      list[tensor].input = list[tensor].output = values[tensor].data();
    }
    list[1].has_priority = 1;
    list[1].priority = 9;
    Calls calls;
    for (int round = 1; round <= 3; ++round) {
      worker.must(pbox_push_pull_many(worker.context(), list.data(), 3, on_done, &calls));
      worker.wait_all();
      await_calls(calls, round);
    }
    require(calls.failed == 0 && calls.tensors == 1, "a callback names the first tensor");

    // No operation is started unless all can be.
    const auto refused = [&](pbox_status status, const std::string& part) {
      require_contains(worker.must_be(status, pbox_push_pull_many(worker.context(), list.data(), 3,
                                                                  on_done, &calls)),
                       part);
    };
    list[2].tensor_id = 0;
    refused(PBOX_ALREADY_EXISTS, "'t1' is in operations twice");
    list[2].tensor_id = 7;
    refused(PBOX_INVALID_ARGUMENT, "tensor 7 is unknown");
    list[2].tensor_id = 2;
    list[2].input = nullptr;
    refused(PBOX_INVALID_ARGUMENT, "'t3': input and output must not be NULL");
    list[2].input = values[2].data();
    list[2].has_priority = 2;
    refused(PBOX_INVALID_ARGUMENT, "operations[2]: has_priority is 2");
    list[2].has_priority = 0;
    list[2].weight = 3;
    refused(PBOX_INVALID_ARGUMENT, "'t3': the push has a weight, but the job is not weighted");
    for (const float weight : {0.5f, -1.0f, NAN, INFINITY}) {
      list[2].weight = weight;
      refused(PBOX_INVALID_ARGUMENT, "give a weight from 1 to 273804165120, or 0 for 1");
    }
    list[2].weight = 1001;
    refused(PBOX_INVALID_ARGUMENT, "pbox_round_weight returns, 1000");
    list[2].weight = 0;
    for (const uint32_t count : {0u, 3u}) {
      worker.must_be(PBOX_INVALID_ARGUMENT,
                     pbox_push_pull_many(worker.context(), count > 0 ? nullptr : list.data(), count,
                                         on_done, &calls));
    }
    for (const size_t size : {size_t{8}, sizeof(pbox_operation) + 1, size_t{1} << 20}) {
      worker.must_be(PBOX_INVALID_ARGUMENT, pbox_push_pull_many_sized(worker.context(), list.data(),
                                                                      size, 3, on_done, &calls));
    }
    require(worker.statistics().operations_completed == 9, "an operation of a refused list ran");
    worker.must(pbox_push_pull_many(worker.context(), list.data(), 3, nullptr, nullptr));
    worker.wait_all();
    require(calls.count == 3, "a refused list calls nothing");
  });
  CHECK(failure == "");
}

TEST_CASE("elements of a list may be those of an older or a newer header") {
  Daemon daemon;
  const auto failure = run_alone([&](Line&) {
    struct Newer {
      pbox_operation known;
      uint64_t added;
    };
    AbiWorker worker({.box = daemon.control()});
    std::vector<float> values(2, 1.0f);
    worker.tensor("a", 1);
    worker.tensor("b", 1);
    worker.join();
    std::vector<Newer> list(2);
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      list[tensor].known.tensor_id = tensor;
      list[tensor].known.input = list[tensor].known.output = &values[tensor];
    }
    const auto start = [&] {
      return pbox_push_pull_many_sized(worker.context(), &list[0].known, sizeof(Newer), 2, nullptr,
                                       nullptr);
    };
    worker.must(start());
    worker.wait_all();
    list[1].added = 1;
    require_contains(worker.must_be(PBOX_INVALID_ARGUMENT, start()), "operations[1]");
  });
  CHECK(failure == "");
}

TEST_CASE("a weighted mean is that of all that the ranks' pushes are of") {
  constexpr double kSamples[] = {3, 700, 12.4};
  constexpr float kWeights[] = {3, 700, 12};
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line&) {
      WorkerOptions options{.box = daemon.control(), .rank = rank, .world_size = 3};
      options.adjust = [](pbox_options& changed) {
        changed.reduction = PBOX_MEAN;
        changed.weighted = 1;
      };
      AbiWorker worker(options);
      // Chunks with many fragments, and fragments that some rank names as zero.
      std::vector<float> values(50'000);
      pbox_operation push{};
      push.tensor_id = worker.tensor("t", values.size());
      push.input = push.output = values.data();
      push.weight = pbox_round_weight(kSamples[rank]);
      require(push.weight == kWeights[rank], "the weight is " + std::to_string(push.weight));
      worker.join();
      for (uint32_t round = 0; round < 3; ++round) {
        const auto value_of = [round](uint32_t of, size_t index) {
          return index < 30'000 * of ? 0.0f : static_cast<float>(index % 7 + of + round);
        };
        for (size_t index = 0; index < values.size(); ++index) {
          values[index] = value_of(rank, index) * push.weight;
        }
        worker.must(pbox_push_pull_many(worker.context(), &push, 1, nullptr, nullptr));
        worker.wait(push.tensor_id);
        for (size_t index = 0; index < values.size(); ++index) {
          float mean = 0;
          for (uint32_t of = 0; of < 3; ++of) mean += value_of(of, index) * kWeights[of];
          require(values[index] == mean * (1.0f / 715), "element " + std::to_string(index));
        }
      }
    });
  }
  for (WorkerProcess& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("many exchanges that fail call their callback once") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      AbiWorker worker({.box = daemon.control(), .rank = rank, .world_size = 2});
      float values[3] = {1, 2, 3};
      pbox_operation list[3] = {};
      for (uint32_t tensor = 0; tensor < 3; ++tensor) {
        worker.tensor("t" + std::to_string(tensor), 1);
        list[tensor].tensor_id = tensor;
        list[tensor].input = list[tensor].output = &values[tensor];
      }
      worker.join();
      if (rank == 1) {
        worker.push_pull(1, &values[1], &values[1]);
        worker.wait(1);
        line.await_go();
        return;
      }
      Calls calls;
      worker.must(pbox_push_pull_many(worker.context(), list, 3, on_done, &calls));
      worker.wait(1);  // one of them is done, the others are not
      require(calls.count == 0, "the callback came before the end of all");
      worker.leave();
      require(calls.count == 1 && calls.failed == 1 && calls.tensors == 1, "wrong callbacks");
    });
  }
  CHECK(workers[0].finish() == "");
  workers[1].go();
  CHECK(workers[1].finish() == "");
}

}  // namespace pbox::test
