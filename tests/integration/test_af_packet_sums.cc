// Sums and weights through a box with the DPDK port: af_packet on a virtual cable, workers over
// kernel sockets, without root's rights.
#include <catch2/catch.hpp>

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

TEST_CASE("sums are right over one queue and over four, in small packets and in large") {
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
  CHECK((daemon.metric("pbox_port_external_packets_total") > 0) == (mtu == 9000));
  CHECK(daemon.metric("pbox_port_dropped_frames_total", "reason=\"checksum\"") == 0);
}

}  // namespace pbox::test
