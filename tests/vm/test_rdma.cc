// Boxes and workers with Soft-RoCE devices, in a guest of tests/vm: rxe0 and rxe1 on NUMA node 0,
// rxe2 and rxe3 on node 1, all on one network.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/daemon.h"
#include "tests/support/momentum.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

// The control connections use loopback, so they survive whatever happens to the devices.
Arguments rdma_box(const Arguments& more) {
  Arguments arguments = {"--data.port=rdma", "--security.insecure=true",
                         "--security.insecure_off_loopback=true"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments on_node_0(uint32_t pipelines, const std::string& mode = "send") {
  return rdma_box({"--rdma.devices=rxe0", "--pipeline.cores=0-1",
                   "--pipeline.count=" + std::to_string(pipelines), "--rdma.mode=" + mode});
}

// Returns how many objects of a kind ("qp", "cq", "mr", "pd") `rdma resource` lists for all
// processes, without the kernel's own.
size_t resources(const std::string& kind) {
  Program program("/bin/sh", {"-c", "rdma resource show " + kind + " | grep -c ' pid '"});
  const auto line = program.read_line(kDeadlineMs);
  return line ? std::stoul(*line) : 0;
}

bool await(const std::function<bool()>& condition) {
  for (int tries = 0; tries < 1'200; ++tries) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

// Each join has a job of its own, because the box may not have noticed yet that the rank of the
// previous join has gone.
std::string refused_join(const std::string& box, const std::string& port) {
  static int jobs = 0;
  const std::string job = std::string("job").append(std::to_string(++jobs));
  WorkerProcess worker([&](Line& line) {
    AbiWorker one({.box = box, .job = job, .adjust = [&](pbox_options& options) {
                     options.port = port.c_str();
                   }});
    one.tensor("gradient", 100);
    const pbox_status status = pbox_join(one.context());
    line.say(status == PBOX_OK ? "joined" : pbox_last_error(one.context()));
  });
  return worker.heard().value_or("nothing was said");
}

std::string refused_start(const std::string& program, const Arguments& words) {
  Program box(program, words);
  const auto status = box.wait_exit(kDeadlineMs);
  return status ? std::to_string(*status) + " " + box.errors() : "it runs";
}

}  // namespace

TEST_CASE("ranks on RDMA devices get the sums that are known in advance", "[sums]") {
  const bool writes = GENERATE(false, true);
  Daemon daemon(on_node_0(2, writes ? "write_imm" : "send"));
  for (const pbox_dtype dtype : {PBOX_F32, PBOX_BF16}) {
    const SumsOutcome outcome =
        run_sums({.box = daemon.control(), .dtype = dtype, .rounds = 6, .port = "rdma:rxe1"});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.pipeline_count == 2);
    CHECK(outcome.fragment_bytes == 32 * 1024);
    CHECK(outcome.retransmitted_fragments == 0);
  }
  CHECK(daemon.metric("pbox_port_queue_pairs_total") == 8);
  CHECK(daemon.metric("pbox_port_queue_pair_errors_total") == 0);
  CHECK(daemon.metric("pbox_port_external_packets_total") > 0);
  CHECK(daemon.metric("pbox_port_staged_packets_total") == 0);
  CHECK((daemon.metric("pbox_port_landed_packets_total") > 0) == writes);
  CHECK(daemon.metric("pbox_port_bad_immediates_total") == 0);
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("a box on an RDMA device holds the weights of ranks on RDMA devices", "[sums]") {
  Daemon daemon(on_node_0(1, GENERATE(as<std::string>(), "send", "write_imm")));
  CHECK(run_momentum(daemon.control(), false, "rdma:rxe3") == "");
  CHECK(daemon.metric("pbox_port_queue_pairs_total") == 2);
}

TEST_CASE("a rank on an RDMA device and one on a kernel socket sum in one job", "[mixed]") {
  Daemon daemon(on_node_0(2, GENERATE(as<std::string>(), "send", "write_imm")));
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      SumsOptions options{.box = daemon.control(), .workers = 2, .rounds = 6};
      if (rank == 1) options.port = "rdma:rxe2";
      run_sums_rank(options, rank, line);
    });
  }
  const SumsOutcome outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(daemon.metric("pbox_port_queue_pairs_total") == 2);
}

TEST_CASE("queue pairs that break under a running job are made anew, and no sum differs",
          "[broken]") {
  const bool writes = GENERATE(false, true);
  Daemon daemon(on_node_0(2, writes ? "write_imm" : "send"));
  SumsOptions options{.box = daemon.control(), .rounds = 150, .port = "rdma:rxe1", .waits = true};
  if (!writes) options.registered_rounds = options.rounds;
  auto workers = start_sums(options);
  await_joined(workers);
  for (const WorkerProcess& worker : workers) worker.go();
  // No packet gets through for longer than an RDMA connection retries.
  must_run({"tc", "qdisc", "add", "dev", "nic1", "root", "netem", "loss", "100%"});
  CHECK(await([&] { return daemon.metric("pbox_port_queue_pairs_total") > 4; }));
  must_run({"tc", "qdisc", "del", "dev", "nic1", "root"});
  const SumsOutcome outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("sums from registered memory are those from any other, and no packet is copied",
          "[memory]") {
  Daemon daemon(on_node_0(2, GENERATE(as<std::string>(), "send", "write_imm")));
  constexpr uint32_t kRounds = 6;
  uint64_t packets = 0;  // packets of a round
  for (const uint32_t registered : {0u, kRounds, kRounds / 2}) {
    const SumsOutcome outcome = run_sums({.box = daemon.control(),
                                          .rounds = kRounds,
                                          .port = "rdma:rxe1",
                                          .registered_rounds = registered});
    CHECK(outcome.failure == "");
    CHECK(outcome.identical);
    CHECK(outcome.retransmitted_fragments == 0);
    if (registered == 0) packets = outcome.packets_staged / kRounds;
    CHECK(packets > 0);
    CHECK(outcome.packets_direct == packets * registered);
    CHECK(outcome.packets_staged == packets * (kRounds - registered));
    CHECK(outcome.packets_staged_refused == 0);
  }
  CHECK(daemon.metric("pbox_port_queue_pair_errors_total") == 0);
}

TEST_CASE("memory is unregistered under way, even where the network takes nothing", "[memory]") {
  Daemon daemon(on_node_0(1));
  WorkerProcess worker([&](Line& line) {
    AbiWorker one({.box = daemon.control(),
                   .adjust = [](pbox_options& options) { options.port = "rdma:rxe1"; }});
    std::vector<float> values(100'000, 1.0f);
    one.tensor("t", values.size());
    one.join();
    line.say("joined");
    line.await_go();
    one.must(pbox_register_memory(one.context(), values.data(), 4 * values.size()));
    one.push_pull(0, values.data(), values.data());
    one.wait(0);
    line.say("registered");
    line.await_go();
    one.push_pull(0, values.data(), values.data());
    // The I/O thread needs less than this to give the device all packets.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const uint64_t direct = one.statistics().packets_direct;
    one.must(pbox_unregister_memory(one.context(), values.data()));
    line.say("unregistered");
    one.wait(0);
    const pbox_statistics counted = one.statistics();
    require(direct > 13 && counted.packets_direct == direct,
            "the packets that the device read are those of both rounds");
    require(counted.packets_staged > 0, "packets are copied when the memory is unregistered");
    require(values.front() == 1 && values.back() == 1, "a wrong sum");
  });
  REQUIRE(worker.heard() == "joined");
  const size_t regions = resources("mr");
  worker.go();
  REQUIRE(worker.heard() == "registered");
  CHECK(resources("mr") == regions + 1);
  must_run({"tc", "qdisc", "add", "dev", "nic1", "root", "netem", "loss", "100%"});
  worker.go();
  CHECK(worker.heard(20'000) == "unregistered");
  CHECK(resources("mr") == regions);
  must_run({"tc", "qdisc", "del", "dev", "nic1", "root"});
  CHECK(worker.finish() == "");
}

TEST_CASE("memory beyond the limit is refused with what to do, and its packets are copied",
          "[memory]") {
  Daemon daemon(on_node_0(2));
  WorkerProcess process([&](Line&) {
    // Packets of two lanes lock 26 MiB.
    const rlimit limit{48u << 20, 48u << 20};
    require(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "no limit");
    become_nobody();
    AbiWorker worker({.box = daemon.control(),
                      .adjust = [](pbox_options& options) { options.port = "rdma:rxe1"; }});
    std::vector<float> values(16u << 20, 1.0f);
    worker.tensor("t", 100'000);
    worker.join();
    const std::string why = worker.must_be(
        PBOX_SYSTEM,
        pbox_register_memory(worker.context(), values.data(), values.size() * sizeof(float)));
    for (const char* part : {"rxe1", "locks 65 MiB", "ulimit -l unlimited", "aw-bits=48"}) {
      require_contains(why, part);
    }
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    const pbox_statistics counted = worker.statistics();
    require(counted.packets_direct == 0 && counted.packets_staged == 0, "read, or not known");
    require(counted.packets_staged_refused == 13, "13 fragments are refused");
    worker.must(pbox_unregister_memory(worker.context(), values.data()));
    worker.must(pbox_register_memory(worker.context(), values.data(), 1u << 20));
    worker.push_pull(0, values.data(), values.data());
    worker.wait(0);
    require(worker.statistics().packets_direct == 13, "13 fragments are read");
  });
  CHECK(process.finish() == "");
}

TEST_CASE("ranks whose device gives out for good go on over sockets, and no sum differs",
          "[broken]") {
  Daemon daemon(on_node_0(1));
  const SumsOptions options{
      .box = daemon.control(), .rounds = 150, .port = "rdma:rxe1|socket", .waits = true};
  auto workers = start_sums(options);
  await_joined(workers);
  for (const WorkerProcess& worker : workers) worker.go();
  must_run({"tc", "qdisc", "add", "dev", "nic1", "root", "netem", "loss", "100%"});
  const SumsOutcome outcome = collect(workers);
  must_run({"tc", "qdisc", "del", "dev", "nic1", "root"});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(daemon.metric("pbox_worker_ports_given_up_total") == workers.size());
}

TEST_CASE("a rank goes on over sockets where the box has no RDMA port", "[mixed]") {
  Daemon sockets;
  const SumsOutcome outcome =
      run_sums({.box = sockets.control(), .workers = 1, .rounds = 2, .port = "rdma:rxe1|socket"});
  CHECK(outcome.failure == "");
  CHECK(sockets.metric("pbox_worker_ports_given_up_total") == 1);
}

TEST_CASE("two hundred workers that come and go leave nothing behind", "[cycles]") {
  Daemon daemon(on_node_0(1, GENERATE(as<std::string>(), "send", "write_imm")));
  const auto held = [] {
    return std::vector<size_t>{resources("qp"), resources("cq"), resources("mr"), resources("pd")};
  };
  const auto before = held();
  for (int cycle = 0; cycle < 50; ++cycle) {
    const SumsOutcome outcome = run_sums({.box = daemon.control(),
                                          .workers = 4,
                                          .elements = {1000},
                                          .rounds = 1,
                                          .port = "rdma:rxe1",
                                          .registered_rounds = 1});
    REQUIRE(outcome.failure == "");
  }
  CHECK(daemon.metric("pbox_port_queue_pairs_total") == 200);
  REQUIRE(daemon.await_no_jobs(kDeadlineMs));
  CHECK(await([&] { return held() == before; }));
  CHECK(resources("qp") == 0);
}

TEST_CASE("pipelines, memory and devices share their NUMA nodes", "[numa]") {
  Daemon daemon(rdma_box({"--pipeline.count=2", "--pipeline.pin=on", "--pipeline.cores=1,3",
                          "--rdma.devices=rxe0 rxe2"}));
  const SumsOutcome outcome = run_sums({.box = daemon.control(), .rounds = 3, .port = "rdma:rxe1"});
  CHECK(outcome.failure == "");
  CHECK(daemon.metric("pbox_port_queue_pairs_total") == 4);
  const std::string proc = "/proc/" + std::to_string(daemon.program().pid());
  // Two blocks of hugepages, one for each pipeline's packets, each whole on its own node.
  std::vector<uint64_t> pages(2, 0);
  std::ifstream maps(proc + "/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(" huge ") == std::string::npos) continue;
    std::istringstream words(line);
    int nodes = 0;
    for (std::string word; words >> word;) {
      if (word.size() < 4 || word[0] != 'N' || word[2] != '=') continue;
      ++nodes;
      pages.at(static_cast<size_t>(word[1] - '0')) += std::stoul(word.substr(3));
    }
    CHECK(nodes == 1);
    INFO(line);
  }
  CHECK(pages[0] > 0);
  CHECK(pages[0] == pages[1]);
  // Reads from the kernel, not from the box, which CPU each pipeline's thread may use.
  for (int pipeline = 0; pipeline < 2; ++pipeline) {
    Program found("/bin/sh",
                  {"-c", "for t in " + proc + "/task/*; do [ $(cat $t/comm) = pipeline-" +
                             std::to_string(pipeline) +
                             " ] && awk '/Cpus_allowed_list/ { print $2 }' $t/status; done; true"});
    CHECK(found.read_line(kDeadlineMs) == (pipeline == 0 ? "1" : "3"));
  }
}

TEST_CASE("each trouble with RDMA is one clear error", "[errors]") {
  const auto start = [](const Arguments& more) {
    Arguments all = on_node_0(1);
    all.insert(all.end(), more.begin(), more.end());
    return refused_start(daemon_path(), daemon_arguments(all));
  };
  CHECK_THAT(
      refused_start(daemon_path(), daemon_arguments(rdma_box({"--rdma.devices=rxe9"}))),
      Catch::StartsWith("1 ") && Catch::Contains("rxe9 is not an RDMA device of this machine"));
  CHECK_THAT(start({"--rdma.gid_index=200"}),
             Catch::StartsWith("1 ") && Catch::Contains("GID index 200 is not in the GID table"));
  CHECK_THAT(
      refused_start(daemon_path(),
                    daemon_arguments(rdma_box({"--rdma.devices=rxe0", "--pipeline.cores=2-3"}))),
      Catch::StartsWith("1 ") && Catch::Contains("is on NUMA node 1") &&
          Catch::Contains("where no RDMA device may be used"));
  Arguments limited = {"--reuid=65534", "--clear-groups", "prlimit", "--memlock=8388608",
                       daemon_path()};
  const Arguments words = daemon_arguments(on_node_0(1));
  limited.insert(limited.end(), words.begin(), words.end());
  CHECK_THAT(refused_start("/usr/bin/setpriv", limited),
             Catch::StartsWith("1 ") && Catch::Contains("memlock: 8 MiB, but packets lock"));
}

TEST_CASE("a worker's trouble with RDMA is one clear error", "[errors]") {
  Daemon daemon(on_node_0(1));
  const std::string& box = daemon.control();
  CHECK_THAT(refused_join(box, "rdma:"), Catch::Contains("no device is named"));
  CHECK_THAT(refused_join(box, "rdma:rxe7"),
             Catch::Contains("no device has this name; choose one of rxe0, rxe1, rxe2, rxe3"));
  CHECK_THAT(refused_join(box, "rdma:rxe1 gid=77"),
             Catch::Contains("GID index 77 is not in the GID table"));
  Daemon sockets;
  CHECK_THAT(refused_join(sockets.control(), "rdma:rxe1"),
             Catch::Contains("this box has no RDMA port: set data.port = rdma there"));
}

// This case comes last, because the routes through nic2 are lost with its link.
TEST_CASE("a link that goes down and comes back is logged and counted, and others are used on",
          "[events]") {
  Daemon daemon(rdma_box({"--pipeline.count=2", "--pipeline.numa=off", "--rdma.devices=rxe0 rxe2",
                          "--rdma.mode=write_imm"}));
  const auto count = [&](const std::string& kind) {
    return daemon.metric("pbox_port_device_events_total", "kind=\"" + kind + "\"");
  };
  CHECK(count("port_down") == 0);
  must_run({"ip", "link", "set", "nic2", "down"});
  CHECK(await([&] { return count("port_down") == 1; }));
  must_run({"ip", "link", "set", "nic2", "up"});
  CHECK(await([&] { return count("port_up") == 1; }));
  CHECK(count("device_fatal") == 0);
  CHECK(count("queue_pair_fatal") == 0);
}

}  // namespace pbox::test
