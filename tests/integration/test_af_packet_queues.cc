// How packets reach the right queue of a DPDK device. Workers find it by trial if the kernel
// distributes packets by a hash of its own. If a device has fewer queues than the box has
// pipelines, software hands the packets over.
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/support/sums.h"
#include "tests/support/veth.h"

namespace pbox::test {
namespace {

using Catch::Contains;

constexpr uint32_t kPipelines = 4;

uint64_t on_wrong_queue(const Daemon& daemon) {
  return daemon.metric("pbox_rejected_packets_total", "reason=\"wrong_queue\"");
}

}  // namespace

TEST_CASE("workers find every queue's source port by trial, and misdirect no packet afterwards") {
  Veth veth;
  Daemon daemon(veth.box_arguments(kPipelines));
  CHECK_THAT(daemon.program().errors(), Contains("packets find their queue by source-trial"));
  auto workers = start_sums(
      {.box = daemon.control(), .workers = 3, .rounds = 20, .as_nobody = true, .waits = true});
  await_joined(workers);
  const uint64_t before = on_wrong_queue(daemon);
  CHECK(before > 0);  // packets of the trials
  for (const auto& worker : workers) worker.go();
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(on_wrong_queue(daemon) == before);
}

TEST_CASE("a device with one queue serves four pipelines, because software hands them over") {
  Veth veth;
  Daemon daemon(veth.box_arguments(kPipelines, ",qpairs=1"));
  CHECK_THAT(daemon.program().errors(), Contains("packets find their queue by dispatch"));
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 3, .rounds = 20, .as_nobody = true});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.pipeline_count == kPipelines);
  CHECK(daemon.metric("pbox_port_dispatched_packets_total") > 0);
  CHECK(on_wrong_queue(daemon) == 0);
}

TEST_CASE(
    "a tap device cannot be a station of its own, because it shares its MAC with the kernel") {
  if (access("/dev/net/tun", R_OK | W_OK) != 0) {
    WARN("skipped: there is no /dev/net/tun");
    return;
  }
  Veth veth;
  auto arguments = veth.box_arguments(2);  // with an MTU of 9000, which a tap device refuses
  std::erase_if(arguments, [](const auto& each) { return each.starts_with("--dpdk.devices"); });
  arguments.push_back("--dpdk.devices=net_tap0,iface=tap0 10.79.0.1/24");
  Daemon daemon(arguments);
  must_run({"ip", "addr", "add", "10.79.0.2/24", "dev", "tap0"});
  const auto outcome = run_sums({.box = daemon.control(), .workers = 2, .as_nobody = true});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.fragment_bytes == 1408);
  CHECK(daemon.metric("pbox_port_dropped_frames_total", "reason=\"source\"") == 0);
}

}  // namespace pbox::test
