// Which queue of a DPDK device a packet comes to: found by trial where the kernel spreads by its
// own hash, and handed over in software where a device has fewer queues than the box pipelines.
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

TEST_CASE("workers find every queue's source port by trial, and miss none afterwards") {
  Veth veth;
  Daemon daemon(veth.box_arguments(kPipelines));
  CHECK_THAT(daemon.program().errors(), Contains("packets find their queue by source-trial"));
  auto workers = start_sums(
      {.box = daemon.control(), .workers = 3, .rounds = 20, .as_nobody = true, .waits = true});
  await_joined(workers);
  const uint64_t before = on_wrong_queue(daemon);
  CHECK(before > 0);  // trials
  for (const auto& worker : workers) worker.go();
  const auto outcome = collect(workers);
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(on_wrong_queue(daemon) == before);
}

TEST_CASE("a device of one queue serves four pipelines: software hands packets over") {
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

}  // namespace pbox::test
