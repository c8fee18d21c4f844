// Faults of networks and machines at a box with the DPDK port: lost, repeated and delayed frames,
// links that go down and come back, boxes that stop or die in the middle of a round.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/support/box_cluster.h"
#include "tests/support/sums.h"
#include "tests/support/veth.h"

namespace pbox::test {
namespace {

using namespace std::chrono_literals;

// Starts workers that run rounds until the box is gone.
std::vector<WorkerProcess> start_endless(const std::string& box) {
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([box, rank](Line& line) {
      become_nobody();
      AbiWorker worker({.box = box, .rank = rank, .world_size = 2, .adjust = [](auto& options) {
                          options.recovery = PBOX_RECOVERY_NONE;
                        }});
      std::vector<float> values(200'000, 1.0f);
      const uint32_t tensor = worker.tensor("t", values.size());
      worker.join();
      line.say("joined");
      for (;;) {
        pbox_status status = pbox_push_pull(worker.context(), tensor, values.data(), values.data(),
                                            nullptr, nullptr);
        if (status == PBOX_OK) status = pbox_wait(worker.context(), tensor, 0);
        if (status == PBOX_OK) continue;
        worker.must_be(PBOX_BOX_LOST, status);
        return;
      }
    });
  }
  await_joined(workers);
  return workers;
}

}  // namespace

TEST_CASE("all ranks get the same, right sums over a wire that loses, repeats and reorders") {
  const uint32_t mtu = GENERATE(1500, 9000);
  Veth veth({.mtu = mtu,
             .wire = WireOptions{
                 .seed = mtu, .lose_one_of = 50, .repeat_one_of = 60, .delay_one_of = 40}});
  Daemon daemon(veth.box_arguments(2));
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 3, .rounds = 6, .as_nobody = true});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.retransmitted_fragments > 0);
  CHECK(veth.wire().counts().lost > 0);
  CHECK(veth.wire().counts().repeated > 0);
  CHECK(veth.wire().counts().delayed > 0);
  CHECK(daemon.metric("pbox_workers_lost_total") == 0);
}

TEST_CASE("a box that stopped or died in the middle of a round starts again on the same devices") {
  const int signal = GENERATE(SIGTERM, SIGKILL);
  CAPTURE(signal);
  Veth veth;
  for (int restart = 0; restart < 2; ++restart) {
    Daemon daemon(veth.box_arguments(4));
    auto workers = start_endless(daemon.control());
    REQUIRE(await([&] { return daemon.metric("pbox_rx_packets_total") > 0; }));
    daemon.program().signal(signal);
    CHECK(daemon.program().wait_exit(kDeadlineMs) == (signal == SIGKILL ? 128 + SIGKILL : 0));
    for (auto& worker : workers) CHECK(worker.finish() == "");
  }
  Daemon daemon(veth.box_arguments(4));
  const auto outcome = run_sums({.box = daemon.control(), .workers = 3, .as_nobody = true});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
}

TEST_CASE("a link that is down for a second costs that second and nothing else") {
  const auto end = GENERATE(Veth::kWorkerInterface, Veth::kBoxInterface);
  CAPTURE(end);
  Veth veth;
  Daemon daemon(veth.box_arguments(4));
  auto workers = start_sums({.box = daemon.control(),
                             .workers = 3,
                             .elements = {200'000, 300'001},
                             .rounds = 40,
                             .as_nobody = true,
                             .waits = true});
  await_joined(workers);
  for (const auto& worker : workers) worker.go();
  REQUIRE(await([&] { return daemon.metric("pbox_rx_packets_total") > 0; }));
  must_run({"ip", "link", "set", end, "down"});
  std::this_thread::sleep_for(1s);
  REQUIRE(await([&] { return daemon.metric("pbox_port_links_down") == 1; }));
  const uint64_t before = daemon.metric("pbox_rx_packets_total");
  CHECK(before > 0);
  must_run({"ip", "link", "set", end, "up"});
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  // Whatever was in flight was lost, in one direction or the other.
  CHECK(outcome.retransmitted_fragments + daemon.metric("pbox_result_fragments_resent_total") > 0);
  // the job was still running when the link failed
  CHECK(daemon.metric("pbox_rx_packets_total") > before);
  // Workers whose own link is down have no route to the box. They disconnect, and join again once
  // the link is up. So the box may lose workers, unless it was its own link that failed.
  if (end == std::string(Veth::kBoxInterface)) {
    CHECK(daemon.metric("pbox_workers_lost_total") == 0);
    CHECK(daemon.metric("pbox_jobs_failed_total") == 0);
  }
  CHECK(daemon.metric("pbox_port_links_down") == 0);
}

}  // namespace pbox::test
