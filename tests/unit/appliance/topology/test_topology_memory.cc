#include <catch2/catch.hpp>

#include "tests/unit/appliance/machines.h"

namespace pbox::topology {

TEST_CASE("jobs get their share of memory, divided by node and by pipeline") {
  const auto topology = plan(config::Config{}, appliance::machine(2, 4));
  REQUIRE(topology);
  const auto expected =
      static_cast<uint64_t>(0.85 * static_cast<double>(2 * appliance::kNodeBytes));
  CHECK(topology->job_memory_bytes == expected);
  uint64_t arenas = 0;
  for (const auto& pipeline : topology->pipelines) {
    CHECK(pipeline.arena_bytes % host::kHugepageBytes == 0);
    arenas += pipeline.arena_bytes;
  }
  CHECK(arenas <= topology->job_memory_bytes);
  CHECK(arenas + topology->pipelines.size() * host::kHugepageBytes >= topology->job_memory_bytes);
}

TEST_CASE("a control group's memory limit counts as the machine's memory") {
  auto facts = appliance::machine(2, 4);
  facts.memory_limit_bytes = 8ull << 30;
  const auto topology = plan(config::Config{}, facts);
  REQUIRE(topology);
  CHECK(topology->job_memory_bytes < facts.memory_limit_bytes);
  CHECK(appliance::has_reason(*topology, " of 8.0 GiB, the control group's limit"));
}

TEST_CASE("hugepages on one node only serve that node's pipelines") {
  auto facts = appliance::machine(2, 4);
  facts.nodes[0].hugepages_total = facts.nodes[0].hugepages_free = 512;
  const auto topology = plan(config::Config{}, facts);
  REQUIRE(topology);
  for (const auto& pipeline : topology->pipelines)
    CHECK(pipeline.hugepages == (pipeline.node == 0));
  CHECK(appliance::has_reason(*topology, "node 0: free 2 MiB hugepages cover 1.0 GiB of 13.6 GiB"));
  CHECK(appliance::has_reason(*topology, "node 1: no free 2 MiB hugepages"));
}

TEST_CASE("hugepages that are switched off are memory that nobody gets") {
  auto facts = appliance::machine(1, 4);
  facts.nodes[0].hugepages_total = facts.nodes[0].hugepages_free = 4096;  // 8 of 16 GiB
  config::Config config;
  config.memory.hugepages = config::OnOffAuto::kOff;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK_FALSE(topology->pipelines[0].hugepages);
  CHECK(topology->job_memory_bytes < appliance::kNodeBytes / 2);
}

TEST_CASE("a node without memory of its own is an error that says what to do") {
  auto facts = appliance::machine(2, 4);
  facts.nodes[1].memory_bytes = 0;
  const auto refused = plan(config::Config{}, facts);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kResourceExhausted);
  CHECK_THAT(refused.error().message, Catch::Contains("NUMA node 1"));
  config::Config config;
  config.pipeline.numa = config::OnOffAuto::kOff;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(topology->pipelines[0].arena_bytes > 0);
}

}  // namespace pbox::topology
