// Workers that share memory with a box on their host: alone, beside workers on sockets, with keys,
// killed, and where sharing memory is impossible. The other tests of the service run over shared
// memory too, with PBOX_TEST_PORT=shm.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/support/box_cluster.h"
#include "tests/support/cable.h"
#include "tests/support/daemon.h"
#include "tests/support/key_folder.h"
#include "tests/support/mortal_box.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// One rank of a job whose sums are checked, with its own port.
struct Rank {
  std::string box;
  std::string port = "shm";
  uint32_t rank = 0;
  uint32_t world_size = 2;
  pbox_lost on_worker_lost = PBOX_LOST_WAIT;
  std::string keys = {};
  std::string name_space = {};
  std::string job = "acme/run-1";
};

constexpr uint64_t kElements = 300'007;

AbiWorker join(const Rank& rank, pbox_mode mode = PBOX_MODE_AGGREGATE) {
  if (!rank.name_space.empty()) enter_name_space(rank.name_space);
  return AbiWorker({.box = rank.box,
                    .job = rank.job,
                    .rank = rank.rank,
                    .world_size = rank.world_size,
                    .adjust = [&](pbox_options& options) {
                      options.port = rank.port.c_str();
                      options.keys = rank.keys.c_str();
                      options.on_worker_lost = rank.on_worker_lost;
                      options.mode = mode;
                    }});
}

// Runs rounds in which every rank pushes its rank + 1 + round. With `sum` 0, any sum is right.
void exchange(const AbiWorker& worker, const Rank& rank, uint32_t rounds, float sum) {
  for (uint32_t round = 0; round < rounds; ++round) {
    std::vector<float> values(kElements, static_cast<float>(rank.rank + 1 + round));
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    const float expected = sum == 0 ? values[0] : sum + static_cast<float>(round * rank.world_size);
    for (const float value : values) require(value == expected, "a wrong sum");
  }
}

// A rank in a process of its own: joins, says "joined", waits for go(), and exchanges.
WorkerProcess start(const Rank& rank, uint32_t rounds, float sum) {
  return WorkerProcess([=](Line& line) {
    const AbiWorker worker = join(rank);
    worker.tensor("t", kElements);
    worker.join();
    line.say("joined");
    line.await_go();
    exchange(worker, rank, rounds, sum);
    worker.leave();
  });
}

constexpr uint32_t kSharedRounds = 20;

// Memory of pbox_alloc for one tensor.
std::span<float> allocate(const AbiWorker& worker) {
  void* memory = nullptr;
  worker.must(pbox_alloc(worker.context(), kElements * sizeof(float), &memory));
  return {static_cast<float*>(memory), kElements};
}

// Like exchange(), but with values that differ by element, all in memory of pbox_alloc.
void exchange_shared(const Rank& rank, pbox_mode mode, bool in_place, Line& line) {
  const AbiWorker worker = join(rank, mode);
  if (mode == PBOX_MODE_AGGREGATE) worker.tensor("t", kElements);
  worker.join();
  line.say("joined");
  line.await_go();
  const std::span<float> input = allocate(worker);
  const std::span<float> output = in_place ? input : allocate(worker);
  require(input[kElements - 1] == 0, "memory that is not zero");
  for (uint32_t round = 0; round < kSharedRounds; ++round) {
    for (size_t at = 0; at < kElements; ++at) {
      input[at] = static_cast<float>((at * (rank.rank + 1) + round) % 1000);
    }
    if (mode == PBOX_MODE_AGGREGATE) {
      worker.push_pull(0, input.data(), output.data());
    } else {
      worker.must(pbox_collective(worker.context(), PBOX_ALL_REDUCE, input.data(), output.data(),
                                  kElements, PBOX_F32, PBOX_OP_SUM, 0, 0, nullptr, nullptr,
                                  nullptr));
    }
    worker.must(pbox_wait_all(worker.context(), 0));
    for (size_t at = 0; at < kElements; ++at) {
      float expected = 0;
      for (size_t other = 1; other <= rank.world_size; ++other) {
        expected += static_cast<float>((at * other + round) % 1000);
      }
      require(output[at] == expected, "a wrong sum");
    }
  }
  const pbox_statistics statistics = worker.statistics();
  require(statistics.packets_direct > 0, "no input was read in place");
  require(statistics.packets_staged == statistics.retransmitted_fragments,
          "an input of pbox_alloc was copied");
  worker.leave();
  worker.must(pbox_free(input.data()));
  if (!in_place) worker.must(pbox_free(output.data()));
}

// Returns the error of a lone rank's join; empty if it may join. Each call has a job of its own.
std::string refusal(Rank rank) {
  static int jobs = 0;
  rank.job = "job" + std::to_string(++jobs);
  rank.world_size = 1;
  WorkerProcess process([&](Line& line) {
    const AbiWorker worker = join(rank);
    worker.tensor("t", kElements);
    const pbox_status status = pbox_join(worker.context());
    line.say(status == PBOX_OK ? "" : pbox_last_error(worker.context()));
  });
  return process.heard(kDeadlineMs).value_or("no answer");
}

void run_pair(const Rank& one, const Rank& other) {
  std::vector<WorkerProcess> workers;
  for (const Rank& rank : {one, other}) workers.push_back(start(rank, 5, 3.0f));
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

}  // namespace

TEST_CASE("sums over shared memory are those over sockets, for every type of value") {
  Daemon daemon;
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_F16, PBOX_BF16}) {
    const auto outcome =
        run_sums({.box = daemon.control(), .workers = 3, .dtype = dtype, .port = "shm"});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.pipeline_count == 2);
    CHECK(outcome.fragment_bytes == 32 * 1024);
  }
  CHECK(daemon.metric("pbox_port_lanes_total") == 3 * 3 * 2);
  CHECK(daemon.metric("pbox_port_lanes_broken_total") == 0);
}

TEST_CASE("inputs of pbox_alloc and results cross shared memory without copies") {
  Daemon daemon;
  const bool in_place = GENERATE(false, true);
  const pbox_mode mode = GENERATE(PBOX_MODE_AGGREGATE, PBOX_MODE_COLLECTIVE);
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      exchange_shared({.box = daemon.control(), .rank = rank, .world_size = 3}, mode, in_place,
                      line);
    });
  }
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  for (auto& worker : workers) CHECK(worker.finish() == "");
  // Each rank gets every result once, in fragments of 32 KiB.
  const uint64_t fragments = kElements * sizeof(float) / (32 * 1024);
  CHECK(daemon.metric("pbox_port_external_packets_total") >= 3 * kSharedRounds * fragments);
  CHECK(daemon.metric("pbox_port_lanes_broken_total") == 0);
}

TEST_CASE("a job has ranks on shared memory and ranks on sockets") {
  Daemon daemon;
  run_pair({.box = daemon.control()}, {.box = daemon.control(), .port = "socket", .rank = 1});
  CHECK(daemon.metric("pbox_port_lanes_total") == 2);
}

TEST_CASE("packets in shared memory have tags, or are encrypted, where the box has keys") {
  const bool encrypts = GENERATE(false, true);
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a");
  const KeyFolder keys(signer, "pbox://rack/tenant/acme/job/run-*/rank/0-1");
  Arguments arguments = {"--box.name=a", "--security.keys=" + box.path()};
  if (encrypts) arguments.push_back("--security.encrypt=true");
  Daemon daemon(arguments);
  run_pair({.box = daemon.control(), .keys = keys.path()},
           {.box = daemon.control(), .rank = 1, .keys = keys.path()});
  CHECK(daemon.metric("pbox_port_lanes_total") == 4);
}

TEST_CASE("a worker that the box offers no memory learns why, and uses the next port") {
  Daemon daemon({"--data.shm=false"});
  CHECK_THAT(refusal({.box = daemon.control()}), Contains("this box offers no shared memory"));
  for (const char* port : {"auto", "shm|socket"}) {
    CHECK(refusal({.box = daemon.control(), .port = port}) == "");
  }
  CHECK(daemon.program().await_errors("port_given_up", kDeadlineMs));
  CHECK(daemon.metric("pbox_worker_ports_given_up_total") == 1);
}

TEST_CASE("a worker that names no port shares memory with a box on its host") {
  Daemon daemon;
  CHECK(refusal({.box = daemon.control(), .port = "auto"}) == "");
  CHECK(daemon.metric("pbox_port_lanes_total") == 2);
}

TEST_CASE("a worker in another network namespace learns why, and uses the next port") {
  Cable cable(1500, 1500);
  if (!cable.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  Daemon daemon(Cable::box_arguments(), cable.box());
  CHECK_THAT(refusal({.box = daemon.control(), .name_space = cable.rack()}),
             Contains("the box is not on this host"));
  for (const char* port : {"auto", "shm|socket"}) {
    CHECK(refusal({.box = daemon.control(), .port = port, .name_space = cable.rack()}) == "");
  }
  CHECK(daemon.program().await_errors("uses port 'socket' instead of 'shm'", kDeadlineMs));
  CHECK_THAT(daemon.program().errors(), !Contains("'auto'"));  // not reported for 'auto'
}

TEST_CASE("a rank that is killed frees its lanes, and the others go on") {
  Daemon daemon;
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    workers.push_back(start({.box = daemon.control(),
                             .rank = rank,
                             .world_size = 3,
                             .on_worker_lost = PBOX_LOST_PARTIAL},
                            20, 0));
  }
  await_joined(workers);
  workers[2].signal(SIGKILL);
  for (const size_t left : {0, 1}) workers[left].go();
  for (const size_t left : {0, 1}) CHECK(workers[left].finish() == "");
  CHECK(daemon.metric("pbox_workers_excluded_total") == 1);
  const auto again = run_sums({.box = daemon.control(), .workers = 3, .port = "shm"});
  CHECK(again.failure == "");
}

TEST_CASE("a box that is killed and started again gets its lanes anew") {
  MortalBox box;
  auto workers = start_sums({.box = box.daemon().control(),
                             .workers = 2,
                             .elements = {1, 353, kElements},
                             .rounds = 100,
                             .port = "shm",
                             .waits = true});
  await_joined(workers);
  for (auto& worker : workers) worker.go();
  REQUIRE(await([&] { return box.daemon().metric("pbox_rx_packets_total") > 300; }));
  box.kill();
  box.start_again();
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(box.daemon().metric("pbox_port_lanes_total") == 4);
}

}  // namespace pbox::test
