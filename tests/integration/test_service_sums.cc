// A real daemon, real worker processes, real sockets: every sum is exact, and all workers get the
// same bytes.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/support/cable.h"
#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

void require_exact(const SumsOutcome& outcome) {
  REQUIRE(outcome.failure == "");
  REQUIRE(outcome.identical);
}

}  // namespace

TEST_CASE("every rank gets the exact sum or mean, whatever the element type") {
  const auto dtype = GENERATE(PBOX_F32, PBOX_F16, PBOX_BF16);
  Daemon daemon;
  for (const auto reduction : {PBOX_SUM, PBOX_MEAN}) {
    for (const uint32_t workers : {2u, 4u}) {
      SumsOptions options{.box = daemon.control(), .workers = workers, .dtype = dtype};
      options.reduction = reduction;
      const auto outcome = run_sums(options);
      require_exact(outcome);
      CHECK(outcome.pipeline_count == 2);
      CHECK(outcome.fragment_bytes == 32768);  // loopback's MTU allows it
    }
  }
  CHECK(daemon.await_no_jobs(kDeadlineMs));
}

TEST_CASE("sums are exact over IPv6") {
  Daemon daemon({"--box.listen=::1"});
  REQUIRE(daemon.control().rfind("[::1]:", 0) == 0);
  require_exact(run_sums({.box = daemon.control(), .workers = 3}));
}

TEST_CASE("data.mtu makes packets small even if the path would carry large ones") {
  const auto gso = GENERATE("auto", "off");
  Daemon daemon({"--data.mtu=1500", std::string("--data.gso=") + gso});
  const auto outcome = run_sums({.box = daemon.control(), .workers = 4});
  require_exact(outcome);
  CHECK(outcome.fragment_bytes == 1408);
}

TEST_CASE("sums are exact with the smallest packets, the smallest chunks and a small window") {
  Daemon daemon({"--data.mtu=640"});
  const auto outcome =
      run_sums({.box = daemon.control(), .workers = 2, .chunk_bytes = 1024, .window_bytes = 4096});
  require_exact(outcome);
  CHECK(outcome.fragment_bytes == 512);
}

TEST_CASE("sums are exact whether results are sent or asked for, and in any order") {
  const auto delivery = GENERATE(PBOX_DELIVERY_BROADCAST, PBOX_DELIVERY_PULL);
  const auto mtu = GENERATE("--data.mtu=1500", "--data.mtu=65536");
  Daemon daemon({mtu});
  for (const auto policy :
       {PBOX_PRIORITY_EXPLICIT, PBOX_PRIORITY_FORWARD_ORDER, PBOX_PRIORITY_FIFO}) {
    SumsOptions options{.box = daemon.control(), .workers = 3};
    options.priority_policy = policy;
    options.delivery = delivery;
    require_exact(run_sums(options));
  }
}

TEST_CASE("P3's slices of 40000 and 50000 parameters fit a path that carries jumbo frames") {
  Daemon daemon({"--data.mtu=9000"});
  for (const uint32_t parameters : {40'000u, 50'000u}) {
    for (const auto delivery : {PBOX_DELIVERY_BROADCAST, PBOX_DELIVERY_PULL}) {
      SumsOptions options{.box = daemon.control(), .chunk_bytes = 4 * parameters};
      options.elements = {39'999, 40'000, 40'001, 50'000, 250'001};
      options.rounds = 3;
      options.delivery = delivery;
      const auto outcome = run_sums(options);
      require_exact(outcome);
      CHECK(outcome.fragment_bytes == 8192);
    }
  }
}

TEST_CASE("slices too large for a narrow path are refused with the remedies") {
  Daemon daemon({"--data.mtu=1500"});
  const auto outcome = run_sums({.box = daemon.control(), .workers = 1, .chunk_bytes = 4 * 40'000});
  CHECK_THAT(outcome.failure, Catch::Contains("chunk_bytes 160000 needs 114 fragments of 1408") &&
                                  Catch::Contains("Lower chunk_bytes to 90112") &&
                                  Catch::Contains("raise the MTU of every path to 9000"));
}

TEST_CASE("a payload checksum does not change any result") {
  Daemon daemon({"--data.payload_crc=on", "--pipeline.count=1"});
  const auto outcome = run_sums({.box = daemon.control(), .workers = 2, .dtype = PBOX_F16});
  require_exact(outcome);
  CHECK(outcome.pipeline_count == 1);
}

TEST_CASE("busy polling gives the same sums") {
  Daemon daemon({"--pipeline.poll=busy", "--pipeline.count=1"});
  require_exact(run_sums({.box = daemon.control(), .workers = 2, .rounds = 4}));
}

TEST_CASE("two simultaneous jobs on one box do not affect each other") {
  Daemon daemon;
  SumsOptions first{.box = daemon.control(), .job = "first", .workers = 2};
  SumsOptions second{.box = daemon.control(), .job = "second", .workers = 2, .dtype = PBOX_BF16};
  second.reduction = PBOX_MEAN;
  std::vector<WorkerProcess> workers, others;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank](Line& line) { run_sums_rank(first, rank, line); });
    others.emplace_back([&, rank](Line& line) { run_sums_rank(second, rank, line); });
  }
  require_exact(collect(workers));
  require_exact(collect(others));
}

TEST_CASE("chunks that together exceed the receive buffer are pushed in portions, without loss") {
  // One chunk from each of the 4 workers exceeds the receive buffer. The credit of a worker is less
  // than two fragments.
  Daemon daemon({"--data.receive_buffer_bytes=65536", "--data.mtu=9000", "--pipeline.count=1",
                 "--pipeline.window_bytes=16777216"});
  SumsOptions options{.box = daemon.control(), .workers = 4, .rounds = 6};
  options.chunk_bytes = 256 * 1024;
  options.elements = {70'000, 300'000, 5};
  const auto outcome = run_sums(options);
  require_exact(outcome);
  CHECK(outcome.retransmitted_fragments == 0);
}

TEST_CASE("over a cable of MTU 1500 fragments fit without any setting") {
  Cable cable(1500, 1500);
  if (!cable.works()) {
    WARN("skipped: network namespaces cannot be made here (needs root and iproute2)");
    return;
  }
  Daemon daemon(Cable::box_arguments(), cable.box());
  SumsOptions options{.box = daemon.control(), .workers = 3, .port = "socket"};
  std::vector<WorkerProcess> workers;
  for (uint32_t rank = 0; rank < options.workers; ++rank) {
    workers.emplace_back([&, rank](Line& line) {
      enter_name_space(cable.rack());
      run_sums_rank(options, rank, line);
    });
  }
  const auto outcome = collect(workers);
  require_exact(outcome);
  CHECK(outcome.fragment_bytes == 1408);
}

}  // namespace pbox::test
