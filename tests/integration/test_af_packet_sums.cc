// Sums and weights through a box with the DPDK port: af_packet on a virtual cable, workers over
// kernel sockets, without root's rights.
#include <catch2/catch.hpp>

#include "base/limits.h"
#include "tests/support/momentum.h"
#include "tests/support/sums.h"
#include "tests/support/veth.h"

namespace pbox::test {
namespace {

using Catch::Contains;

void require_right(const SumsOutcome& outcome, uint32_t pipelines) {
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.pipeline_count == pipelines);
}

}  // namespace

TEST_CASE("sums are right over one queue and over four, in small packets and in large ones") {
  const uint32_t pipelines = GENERATE(1, 4);
  const uint32_t mtu = GENERATE(1500, 9000);
  const auto addresses = GENERATE("10.77.0.1/24", "fd77::1/64");
  CAPTURE(pipelines, mtu, addresses);
  Veth veth({.mtu = mtu});
  Daemon daemon(veth.box_arguments(pipelines, "", addresses));
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 3, .rounds = 6, .as_nobody = true});
  require_right(outcome, pipelines);
  CHECK(outcome.fragment_bytes >= (mtu == 9000 ? 8192 : 1344));
  CHECK(daemon.metric("pbox_port_external_packets_total") > 0);
  CHECK(daemon.metric("pbox_port_dropped_frames_total", "reason=\"checksum\"") == 0);
}

TEST_CASE("the packet size follows the worker's data link, not its control link") {
  Veth veth;  // MTU: 9000 at the box, 65536 on loopback, which carries control
  must_run({"ip", "link", "set", Veth::kWorkerInterface, "mtu", "1500"});
  Daemon daemon(veth.box_arguments(2));
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 2, .rounds = 3, .as_nobody = true});
  require_right(outcome, 2);
  CHECK(outcome.fragment_bytes == limits::kFragmentBytesEthernet);
}

TEST_CASE("means of 16-bit gradients and the box's optimizer steps are right over four queues") {
  Veth veth;
  Daemon daemon(veth.box_arguments(4));
  for (const pbox_dtype dtype : {PBOX_F16, PBOX_BF16}) {
    const auto outcome = run_sums({.box = daemon.control(),
                                   .workers = 2,
                                   .dtype = dtype,
                                   .reduction = PBOX_MEAN,
                                   .as_nobody = true});
    require_right(outcome, 4);
  }
  CHECK(run_momentum(daemon.control(), true) == "");
  CHECK(daemon.await_no_jobs(kDeadlineMs));
  CHECK(daemon.metric("pbox_port_no_buffer_total") == 0);
}

TEST_CASE("two devices with separate networks serve one job, each through its own pipelines") {
  Veth veth({.mtu = 1500});
  veth.add_network("box1", "worker1", "10.78.0.2/24");
  auto arguments = veth.box_arguments(4);
  for (auto& argument : arguments) {
    if (argument.starts_with("--dpdk.devices")) {
      argument += "; net_af_packet1,iface=box1 10.78.0.1/24";
    }
  }
  Daemon daemon(arguments);
  const auto outcome = run_sums({.box = daemon.control(), .workers = 3, .as_nobody = true});
  require_right(outcome, 4);
  for (const char* pipeline : {"0", "1", "2", "3"}) {
    const std::string label = "pipeline=\"" + std::string(pipeline) + "\"";
    CHECK(daemon.metric("pbox_chunk_rounds_total", label) > 0);
  }
}

}  // namespace pbox::test
