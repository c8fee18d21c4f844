// Collectives of worker processes with a real box, through the C ABI alone: results, ranks that
// disagree, and ranks and boxes that are lost.
#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "tests/support/box_cluster.h"
#include "tests/support/daemon.h"
#include "tests/support/mortal_box.h"
#include "tests/support/worker_process.h"

namespace pbox::test {
namespace {

using Catch::Contains;

struct Job {
  std::string box;
  uint32_t ranks = 2;
  pbox_recovery recovery = PBOX_RECOVERY_COPY;
  uint32_t wait_timeout_ms = 60'000;
};

AbiWorker rank_of(const Job& job, uint32_t rank) {
  return AbiWorker(
      {.box = job.box, .rank = rank, .world_size = job.ranks, .adjust = [&](pbox_options& options) {
         options.mode = PBOX_MODE_COLLECTIVE;
         options.recovery = job.recovery;
         options.wait_timeout_ms = job.wait_timeout_ms;
       }});
}

struct Call {
  pbox_verb verb = PBOX_ALL_REDUCE;
  uint64_t count = 0;
  pbox_dtype dtype = PBOX_F32;
  pbox_op op = PBOX_OP_SUM;
  uint32_t root = 0;
};

uint64_t start(const AbiWorker& worker, const Call& call, const void* in, void* out) {
  uint64_t operation = 0;
  worker.must(pbox_collective(worker.context(), call.verb, in, out, call.count, call.dtype, call.op,
                              call.root, 0, nullptr, nullptr, &operation));
  return operation;
}

void run(const AbiWorker& worker, const Call& call, const void* in, void* out) {
  worker.must(pbox_wait_collective(worker.context(), start(worker, call, in, out), 0));
}

float value_of(uint32_t rank, uint64_t round, uint64_t index) {
  return static_cast<float>((index * 3 + rank * 5 + round * 7) % 101);
}

std::vector<float> values_of(uint32_t rank, uint64_t round, uint64_t count, uint64_t first = 0) {
  std::vector<float> values(count);
  for (uint64_t index = 0; index < count; ++index) {
    values[index] = value_of(rank, round, first + index);
  }
  return values;
}

std::vector<float> sums_of(uint32_t ranks, uint64_t round, uint64_t count, uint64_t first = 0) {
  std::vector<float> sums(count);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t index = 0; index < count; ++index) {
      sums[index] += value_of(rank, round, first + index);
    }
  }
  return sums;
}

// One step of sharded training: gather, reduce and scatter, all-reduce, broadcast.
void train_step(const AbiWorker& worker, const Job& job, uint32_t rank, uint64_t round,
                uint64_t count) {
  const std::vector<float> own = values_of(rank, round, count);
  std::vector<float> gathered(count * job.ranks), scattered(count), reduced = own, told = own;
  const std::vector<float> wide = values_of(rank, round, count * job.ranks);
  const auto root = static_cast<uint32_t>(round % job.ranks);
  const uint64_t operations[] = {
      start(worker, {PBOX_ALL_GATHER, count}, own.data(), gathered.data()),
      start(worker, {PBOX_REDUCE_SCATTER, count}, wide.data(), scattered.data()),
      start(worker, {PBOX_ALL_REDUCE, count}, reduced.data(), reduced.data()),
      start(worker, {.verb = PBOX_BROADCAST, .count = count, .root = root}, told.data(),
            told.data()),
      start(worker, {PBOX_BARRIER}, nullptr, nullptr)};
  for (const uint64_t operation : operations) {
    worker.must(pbox_wait_collective(worker.context(), operation, 0));
  }
  const std::string where = " in round " + std::to_string(round);
  for (uint32_t from = 0; from < job.ranks; ++from) {
    const auto segment = gathered.begin() + static_cast<ptrdiff_t>(from * count);
    require(std::vector<float>(segment, segment + static_cast<ptrdiff_t>(count)) ==
                values_of(from, round, count),
            "all_gather" + where);
  }
  require(scattered == sums_of(job.ranks, round, count, rank * count), "reduce_scatter" + where);
  require(reduced == sums_of(job.ranks, round, count), "all_reduce" + where);
  require(told == values_of(root, round, count), "broadcast" + where);
}

std::vector<WorkerProcess> start_training(const Job& job, uint64_t rounds, uint64_t count) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    workers.emplace_back([job, rank, rounds, count](Line& line) {
      const AbiWorker worker = rank_of(job, rank);
      worker.join();
      line.say("joined");
      for (uint64_t round = 0; round < rounds; ++round) {
        train_step(worker, job, rank, round, count);
      }
      worker.leave();
    });
  }
  for (auto& worker : workers) REQUIRE(worker.heard() == "joined");
  return workers;
}

bool await_rounds(const Daemon& daemon) {
  constexpr uint64_t kPackets = 500;
  return await([&] { return daemon.metric("pbox_rx_packets_total") > kPackets; });
}

}  // namespace

TEST_CASE("ranks that are processes get the results of every collective") {
  const auto recovery = GENERATE(PBOX_RECOVERY_COPY, PBOX_RECOVERY_NONE);
  const uint32_t ranks = GENERATE(2u, 4u);
  const Daemon daemon;
  // An operation of 12 MiB needs more than half of the slots, so a step's operations take turns.
  auto workers = start_training(
      {.box = daemon.control(), .ranks = ranks, .recovery = static_cast<pbox_recovery>(recovery)},
      3, 3u << 20);
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(daemon.await_no_jobs(kDeadlineMs));
  CHECK(daemon.metric("pbox_jobs_finished_total") == 1);
}

TEST_CASE("the slots are as large as is asked, and 32 MiB by default") {
  const Daemon daemon;
  const uint32_t asked = GENERATE(0u, 1u << 20);
  WorkerProcess alone([&](Line&) {
    const AbiWorker worker({.box = daemon.control(), .adjust = [&](pbox_options& options) {
                              options.mode = PBOX_MODE_COLLECTIVE;
                              options.collective_bytes = asked;
                            }});
    worker.join();
    // With recovery copy a rank has a copy of each slot. A slot is a chunk of 31.5 KiB.
    constexpr uint64_t kChunkBytes = 32'256;
    const uint64_t bytes = asked == 0 ? 32u << 20 : asked;
    require(worker.statistics().shadow_bytes == bytes / kChunkBytes * kChunkBytes,
            std::to_string(worker.statistics().shadow_bytes) + " bytes of slots");
    worker.leave();
  });
  CHECK(alone.finish() == "");
}

TEST_CASE("callbacks end operations, and may start others") {
  const Daemon daemon;
  WorkerProcess alone([&](Line&) {
    const AbiWorker worker = rank_of({.box = daemon.control(), .ranks = 1}, 0);
    worker.join();
    struct Chain {
      pbox_context* context;
      float value = 3;
      std::atomic<int> left{100};
    } chain{.context = worker.context()};
    const auto next = [](void* user, uint64_t, pbox_status status) {
      auto& state = *static_cast<Chain*>(user);
      if (status != PBOX_OK || --state.left == 0) return;
      pbox_collective(
          state.context, PBOX_ALL_REDUCE, &state.value, &state.value, 1, PBOX_F32, PBOX_OP_SUM, 0,
          0, [](void* inner, uint64_t, pbox_status) { --static_cast<Chain*>(inner)->left; }, user,
          nullptr);
    };
    for (int round = 0; round < 50; ++round) {
      worker.must(pbox_collective(worker.context(), PBOX_ALL_REDUCE, &chain.value, &chain.value, 1,
                                  PBOX_F32, PBOX_OP_SUM, 0, 0, next, &chain, nullptr));
      require(await([&] { return chain.left.load() <= 98 - 2 * round; }), "a callback is missing");
    }
    require(chain.value == 3, "the sum of one rank is its value");
    worker.leave();
  });
  CHECK(alone.finish() == "");
}

TEST_CASE("collectives go on over a box that is killed again and again") {
  MortalBox box;
  auto workers = start_training({.box = box.daemon().control(), .ranks = 3}, 150, 40'000);
  for (int crash = 0; crash < 3; ++crash) {
    REQUIRE(await_rounds(box.daemon()));
    box.kill();
    box.start_again();
  }
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(box.daemon().metric("pbox_jobs_recovered_total") == 1);
}

TEST_CASE("ranks that disagree get an error that names both and their operations") {
  const Daemon daemon;
  const Job job{.box = daemon.control(), .ranks = 3};
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < job.ranks; ++rank) {
    workers.emplace_back([&job, rank](Line& line) {
      const AbiWorker worker = rank_of(job, rank);
      worker.join();
      std::vector<float> values(5000, 1);
      run(worker, {PBOX_ALL_REDUCE, 10}, values.data(), values.data());
      const Call call = rank == 1 ? Call{.verb = PBOX_ALL_GATHER, .count = 70, .dtype = PBOX_I64}
                                  : Call{PBOX_ALL_REDUCE, 5000};
      const uint64_t operation = start(worker, call, values.data(), values.data());
      const std::string error =
          worker.must_be(PBOX_MISMATCH, pbox_wait_collective(worker.context(), operation, 30'000));
      require_contains(error, "rank 1 is at operation 1 (all_gather of 70 i64)");
      require_contains(error, " is at operation 1 (all_reduce of 5000 f32, sum)");
      // The process lives, and a new context works.
      line.say("told");
      line.await_go();
      worker.leave();
      const AbiWorker again = rank_of(job, rank);
      again.join();
      run(again, {PBOX_ALL_REDUCE, 10}, values.data(), values.data());
      require(values[0] == 9, "the sum after the failure");
      again.leave();
    });
  }
  for (auto& worker : workers) CHECK(worker.heard() == "told");
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
  CHECK(daemon.metric("pbox_rejected_packets_total", "reason=\"shape\"") > 0);
}

TEST_CASE("a rank that disagrees with one that has left in the middle is told") {
  const Daemon daemon;
  const Job job{.box = daemon.control(), .ranks = 2};
  WorkerProcess leaver([&](Line& line) {
    const AbiWorker worker = rank_of(job, 0);
    worker.join();
    std::vector<float> values(100, 1);
    start(worker, {PBOX_ALL_REDUCE, 100}, values.data(), values.data());
    const pbox_status status = pbox_wait_collective(worker.context(), 0, 500);
    require(status == PBOX_TIMEOUT, "nobody has answered, but the operation is over");
    worker.leave();
    line.say("left");
  });
  WorkerProcess other([&](Line& line) {
    const AbiWorker worker = rank_of(job, 1);
    worker.join();
    line.await_go();
    std::vector<float> values(10, 1);
    const uint64_t operation = start(worker, {PBOX_ALL_REDUCE, 10}, values.data(), values.data());
    const std::string error =
        worker.must_be(PBOX_MISMATCH, pbox_wait_collective(worker.context(), operation, 30'000));
    require_contains(error, "rank 1 is at operation 0 (all_reduce of 10 f32, sum)");
  });
  REQUIRE(leaver.heard() == "left");
  CHECK(leaver.finish() == "");
  other.go();
  CHECK(other.finish() == "");
}

TEST_CASE("a rank that is late or dies is named, with the operation that waits for it") {
  const Daemon daemon({"--control.worker_lost_timeout_ms=1000"});
  const Job job{.box = daemon.control(), .ranks = 2, .wait_timeout_ms = 1000};
  WorkerProcess late([&](Line& line) {
    const AbiWorker worker = rank_of(job, 1);
    worker.join();
    line.say("joined");
    line.await_go();
  });
  WorkerProcess punctual([&](Line& line) {
    const AbiWorker worker = rank_of(job, 0);
    worker.join();
    std::vector<float> values(100, 1);
    const uint64_t operation = start(worker, {PBOX_ALL_REDUCE, 100}, values.data(), values.data());
    const std::string error =
        worker.must_be(PBOX_TIMEOUT, pbox_wait_collective(worker.context(), operation, 0));
    require_contains(error,
                     "operation 0 (all_reduce of 100 f32, sum) is not complete after 1000 ms"
                     ": rank 1 is late");
    line.say("late");
    line.await_go();
    const std::string lost =
        worker.must_be(PBOX_WORKER_LOST, pbox_wait_collective(worker.context(), operation, 60'000));
    require_contains(lost, "rank 1");
  });
  REQUIRE(late.heard() == "joined");
  REQUIRE(punctual.heard() == "late");
  late.signal(SIGKILL);
  punctual.go();
  CHECK(punctual.finish() == "");
}

TEST_CASE("arguments that cannot be are refused by name") {
  const Daemon daemon;
  WorkerProcess alone([&](Line&) {
    const AbiWorker worker = rank_of({.box = daemon.control(), .ranks = 1}, 0);
    uint32_t tensor = 0;
    require_contains(
        worker.must_be(PBOX_INVALID_ARGUMENT,
                       pbox_register_tensor(worker.context(), "t", 1, PBOX_F32, 0, &tensor)),
        "mode collective has no tensors");
    worker.join();
    float value = 1;
    const auto refused = [&](pbox_verb verb, const void* in, uint64_t count, pbox_dtype dtype,
                             pbox_op op, uint32_t root) {
      return worker.must_be(PBOX_INVALID_ARGUMENT,
                            pbox_collective(worker.context(), verb, in, &value, count, dtype, op,
                                            root, 0, nullptr, nullptr, nullptr));
    };
    require_contains(refused(9, &value, 1, PBOX_F32, PBOX_OP_SUM, 0), "verb 9 is unknown");
    require_contains(refused(PBOX_ALL_REDUCE, &value, 1, 8, PBOX_OP_SUM, 0), "dtype 8 is unknown");
    require_contains(refused(PBOX_ALL_REDUCE, &value, 1, PBOX_F32, 4, 0), "op 4 is unknown");
    require_contains(refused(PBOX_ALL_REDUCE, &value, 1, PBOX_I32, PBOX_OP_MEAN, 0),
                     "PBOX_OP_MEAN of i32 is not supported");
    require_contains(refused(PBOX_ALL_REDUCE, nullptr, 1, PBOX_F32, PBOX_OP_SUM, 0),
                     "in must not be NULL");
    require_contains(refused(PBOX_BROADCAST, &value, 1, PBOX_F32, PBOX_OP_SUM, 1),
                     "root 1 must be below world_size 1");
    require_contains(refused(PBOX_ALL_REDUCE, &value, UINT64_MAX, PBOX_F32, PBOX_OP_SUM, 0),
                     "is too large");
    require_contains(
        worker.must_be(PBOX_INVALID_ARGUMENT, pbox_wait_collective(worker.context(), 7, 0)),
        "operation 7 was not started");
    worker.leave();
  });
  CHECK(alone.finish() == "");
}

}  // namespace pbox::test
