// A box and workers without a kernel between them: shared-memory devices, one per worker, and
// libpbox_dpdk.so.1 on the workers' side.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

using Catch::Contains;

// A memif device of the box for each worker, and the name of each worker's port.
class Cables {
 public:
  explicit Cables(uint32_t workers) : workers_(workers) {
    char name[] = "/tmp/pbox-memif-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Cables() { std::filesystem::remove_all(folder_); }
  Cables(const Cables&) = delete;
  Cables& operator=(const Cables&) = delete;

  Arguments box(uint32_t pipelines, const Arguments& more = {}) const {
    std::string devices;
    for (uint32_t worker = 0; worker < workers_; ++worker) {
      devices += (worker == 0 ? "net_memif" : "; net_memif") + std::to_string(worker) +
                 ",role=server," + socket(worker) + " 10.91.0.1/24";
    }
    Arguments arguments = {
        "--data.port=dpdk",
        "--data.port_first=9542",  // a port of the devices, unknown to the kernel
        "--data.mtu=9000",
        "--dpdk.no_huge=true",
        "--dpdk.memory_mib=1024",
        "--dpdk.devices=" + devices,
        "--pipeline.count=" + std::to_string(pipelines)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::string worker(uint32_t rank) const {
    return "dpdk:net_memif0," + socket(rank) + " 10.91.0." + std::to_string(rank + 2) +
           "/24 mtu=9000 no_huge";
  }

 private:
  std::string socket(uint32_t worker) const {
    return "socket=" + folder_ + "/" + std::to_string(worker) + ".sock,socket-abstract=no,id=0";
  }

  uint32_t workers_;
  std::string folder_;
};

SumsOutcome run_sums_over(const Cables& cables, SumsOptions options) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    options.port = cables.worker(rank);
    workers.emplace_back([&, options, rank](Line& line) { run_sums_rank(options, rank, line); });
  }
  return collect(workers);
}

// Runs rounds until one fails. Says "under way" after the first round, and at the end the error.
void run_for_ever(const Daemon& daemon, const Cables& cables, uint32_t rank, Line& line,
                  bool rests = false) {
  const std::string port = cables.worker(rank);
  AbiWorker worker({.box = daemon.control(),
                    .rank = rank,
                    .world_size = 2,
                    .adjust = [&](pbox_options& options) {
                      options.port = port.c_str();
                      options.lost_timeout_ms = 200;
                      options.recovery = PBOX_RECOVERY_NONE;  // no search for a lost box
                    }});
  worker.tensor("t", 500'000);
  worker.join();
  std::vector<float> values(500'000, 1.0f);
  for (int round = 0;; ++round) {
    pbox_status status =
        pbox_push_pull(worker.context(), 0, values.data(), values.data(), nullptr, nullptr);
    if (status == PBOX_OK) status = pbox_wait(worker.context(), 0, 0);
    if (status != PBOX_OK) break;
    std::fill(values.begin(), values.end(), 1.0f);
    if (round == 0) line.say("under way");
    if (rests) line.await_go();
  }
  line.say(pbox_last_error(worker.context()));
}

// Returns the message of a pboxd that cannot start and ends with one of its own exit codes.
std::string refusal_of(const Arguments& arguments) {
  Program program(daemon_path(), daemon_arguments(arguments));
  const int status = program.wait_exit(kDeadlineMs).value_or(-1);
  CHECK((status == 1 || status == 2));
  return program.errors();
}

}  // namespace

TEST_CASE("sums over shared-memory devices are right for every element type and queue") {
  const uint32_t workers = GENERATE(2, 3);
  const uint32_t pipelines = GENERATE(1, 2);
  Cables cables(workers);
  Daemon daemon(cables.box(pipelines));
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_F16, PBOX_BF16}) {
    const auto outcome = run_sums_over(
        cables, {.box = daemon.control(), .workers = workers, .dtype = dtype, .rounds = 6});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.pipeline_count == pipelines);
    CHECK(outcome.fragment_bytes == 8192);
    CHECK(daemon.await_no_jobs(kDeadlineMs));
  }
}

TEST_CASE("the box's optimizer serves workers over shared-memory devices") {
  constexpr uint64_t kElements = 20'001;
  Cables cables(2);
  Daemon daemon(cables.box(2));
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line&) {
      const std::string port = cables.worker(rank);
      AbiWorker worker({.box = daemon.control(),
                        .rank = rank,
                        .world_size = 2,
                        .adjust = [&](pbox_options& options) {
                          options.mode = PBOX_MODE_OPTIMIZE;
                          options.reduction = PBOX_SUM;
                          options.port = port.c_str();
                        }});
      worker.tensor("weights", kElements);
      std::vector<float> weights(kElements, 8.0f);
      worker.join_with_sgd(0.5f, 0, weights);
      for (int round = 1; round <= 8; ++round) {
        const std::vector<float> gradient(kElements, static_cast<float>(rank));
        worker.push_pull(0, gradient.data(), weights.data());
        worker.wait(0);
        const float expected = 8.0f - 0.5f * static_cast<float>(round);
        require(weights == std::vector<float>(kElements, expected), "wrong weights");
      }
      worker.leave();
    });
  }
  for (auto& worker : workers) CHECK(worker.finish() == "");
}

TEST_CASE("a process joins one job after another over one device") {
  Cables cables(1);
  Daemon daemon(cables.box(2));
  WorkerProcess process([&](Line& line) {
    SumsOptions options{.box = daemon.control(), .workers = 1, .rounds = 2};
    options.port = cables.worker(0);
    for (int job = 0; job < 5; ++job) run_sums_rank(options, 0, line);
  });
  CHECK(process.finish() == "");
}

TEST_CASE("a worker that is killed ends its job by name, and its device serves the next one") {
  Cables cables(2);
  Daemon daemon(cables.box(2));
  for (int turn = 0; turn < 5; ++turn) {
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.emplace_back([&, rank](Line& line) { run_for_ever(daemon, cables, rank, line); });
    }
    REQUIRE(workers[0].heard() == "under way");
    REQUIRE(workers[1].heard() == "under way");
    workers[1].signal(SIGKILL);
    CHECK_THAT(workers[0].heard().value_or("nothing"), Contains("rank 1"));
    CHECK(workers[0].finish() == "");
    REQUIRE(daemon.await_no_jobs(kDeadlineMs));
    const auto next = run_sums_over(cables, {.box = daemon.control(), .job = "next", .rounds = 2});
    CHECK(next.failure == "");
  }
}

TEST_CASE("a second box on the sockets of a running one is refused, and the running one goes on") {
  Cables cables(2);
  Daemon daemon(cables.box(1));
  for (int turn = 0; turn < 3; ++turn) {
    CHECK_THAT(refusal_of(cables.box(1)), Contains("net_memif0") &&
                                              Contains("another process serves") &&
                                              Contains("stop that process"));
  }
  const auto outcome = run_sums_over(cables, {.box = daemon.control(), .rounds = 2});
  CHECK(outcome.failure == "");
}

TEST_CASE("a box that cannot have its devices or their memory says so and ends") {
  const Arguments open = {"--security.insecure=true", "--security.insecure_off_loopback=true",
                          "--data.port=dpdk", "--data.port_first=9542", "--pipeline.count=1"};
  const auto with = [&](const Arguments& more) {
    Arguments all = open;
    all.insert(all.end(), more.begin(), more.end());
    return refusal_of(all);
  };
  CHECK_THAT(with({"--dpdk.no_huge=true", "--dpdk.devices=0000:ff:1f.7 10.91.0.1/24"}),
             Contains("0000:ff:1f.7") && Contains("not a network device of this machine"));
  std::ifstream memory("/proc/meminfo");
  for (std::string word; memory >> word;) {
    uint64_t free_pages = 0;
    if (word != "HugePages_Free:" || !(memory >> free_pages) || free_pages > 0) continue;
    CHECK_THAT(with({"--dpdk.devices=net_null0 10.91.0.1/24"}),
               Contains("free hugepages") && Contains("dpdk.no_huge = true"));
  }
}

TEST_CASE("a worker whose device leads nowhere is told at the join") {
  Cables cables(1);
  Daemon daemon(cables.box(1));
  const auto told = [&](const std::string& port) {
    WorkerProcess process([&](Line& line) {
      AbiWorker worker({.box = daemon.control(), .adjust = [&](pbox_options& options) {
                          options.port = port.c_str();
                          options.join_timeout_ms = 300;
                        }});
      worker.tensor("t", 100);
      const pbox_status status = pbox_join(worker.context());
      line.say(status == PBOX_OK ? "joined" : pbox_last_error(worker.context()));
    });
    return process.heard().value_or("nothing");
  };
  CHECK_THAT(told("dpdk:net_memif0,socket=/tmp/pbox-no-such.sock,socket-abstract=no 10.91.0.2/24 "
                  "no_huge mtu=9000"),
             Contains("net_memif0") && Contains("no other process uses it"));
  CHECK_THAT(told("dpdk:net_null0 10.91.0.2/24 no_huge mtu=9000"),
             Contains("pipeline 0 of the box (10.91.0.1:9542)") && Contains("net_null0"));
  CHECK_THAT(told("dpdk:net_null0 10.91.0.2/24 no_huge mtu=1"),
             Contains("libpbox_dpdk.so.1 refused") && Contains("'mtu=1'"));
  CHECK(told(cables.worker(0)) == "joined");
}

// Workers rest when the box ends: DPDK 22.11 unmaps the memory that it shared with the box even
// while a worker polls there, and no library can prevent that (nic/dpdk/grace_period.h).
TEST_CASE("a box that is stopped or killed comes back over the same sockets") {
  const int signal = GENERATE(SIGTERM, SIGKILL);
  Cables cables(2);
  for (int turn = 0; turn < 3; ++turn) {
    Daemon daemon(cables.box(2));
    const auto outcome = run_sums_over(cables, {.box = daemon.control(), .rounds = 2});
    CHECK(outcome.failure == "");
    std::vector<WorkerProcess> workers;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      workers.emplace_back(
          [&, rank](Line& line) { run_for_ever(daemon, cables, rank, line, true); });
    }
    REQUIRE(workers[0].heard() == "under way");
    REQUIRE(workers[1].heard() == "under way");
    daemon.program().signal(signal);
    CHECK(daemon.program().wait_exit(kDeadlineMs) == (signal == SIGTERM ? 0 : 128 + SIGKILL));
    for (auto& worker : workers) {
      worker.go();
      CHECK_THAT(worker.heard().value_or("nothing"), Contains("box"));
      CHECK(worker.finish() == "");
    }
  }
}

TEST_CASE("the doctor on a box of shared-memory devices goes all the way, as a worker would") {
  Cables cables(2);
  Arguments arguments = {"doctor", "-o", "json", "--seconds=1"};
  const Arguments box = daemon_arguments(cables.box(2));
  arguments.insert(arguments.end(), box.begin(), box.end());
  Program program(PBOX_CTL_PATH, arguments);
  std::string output;
  while (const auto line = program.read_line(kDeadlineMs)) output += *line + '\n';
  INFO(output << program.errors());
  CHECK(program.wait_exit(kDeadlineMs) == 0);
  const auto checks = nlohmann::json::parse(output).at("checks");
  std::vector<std::string> well;
  for (const auto& check : checks) {
    if (check.at("level") == "ok") well.push_back(check.at("name"));
  }
  for (const char* name : {"join", "data", "mtu", "sums", "optimizer"}) {
    CHECK(std::count(well.begin(), well.end(), name) == 1);
  }
}

}  // namespace pbox::test
