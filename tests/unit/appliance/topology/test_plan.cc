#include <catch2/catch.hpp>

#include "tests/unit/appliance/machines.h"

namespace pbox::topology {

using config::OnOffAuto;
using config::PollMode;

TEST_CASE("a box with one core runs one pipeline that shares it") {
  const auto topology = plan(config::Config{}, appliance::machine(1, 1));
  REQUIRE(topology);
  REQUIRE(topology->pipelines.size() == 1);
  const auto& pipeline = topology->pipelines[0];
  CHECK(pipeline.cpu == 0);
  CHECK_FALSE(pipeline.pinned);
  CHECK(pipeline.node == 0);
  CHECK(pipeline.address == "127.0.0.1");
  CHECK(pipeline.udp_port == limits::kDataPortFirst);
  CHECK(pipeline.nic.empty());
  CHECK(topology->control_cpus.empty());
  CHECK(appliance::has_reason(*topology, "1 core shared with other work: not pinned"));
}

TEST_CASE("a box with two cores runs two pipelines, unpinned, and says why") {
  const auto topology = plan(config::Config{}, appliance::machine(1, 2));
  REQUIRE(topology);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{0, 1});
  CHECK(topology->pipelines[1].udp_port == limits::kDataPortFirst + 1);
  CHECK(appliance::has_reason(*topology,
                              "pipeline.pin = auto: 2 cores shared with other work: not pinned"));
}

TEST_CASE("a small machine that polls busily leaves a core for everything else") {
  config::Config config;
  config.pipeline.poll = PollMode::kBusy;
  const auto two = plan(config, appliance::machine(1, 2));
  REQUIRE(two);
  REQUIRE(two->pipelines.size() == 1);
  CHECK(two->pipelines[0].pinned);
  CHECK(two->control_cpus == std::vector<int>{1});
  const auto one = plan(config, appliance::machine(1, 1));
  REQUIRE(one);
  CHECK(one->pipelines.size() == 1);
}

TEST_CASE("pipeline.pin is obeyed when it is not auto") {
  config::Config config;
  config.pipeline.pin = OnOffAuto::kOn;
  CHECK(plan(config, appliance::machine(1, 2))->pipelines[1].pinned);
  config.pipeline.pin = OnOffAuto::kOff;
  CHECK_FALSE(plan(config, appliance::machine(1, 16))->pipelines[0].pinned);
}

TEST_CASE("from eight cores on, one per node is kept back for control") {
  const auto seven = plan(config::Config{}, appliance::machine(1, 7));
  REQUIRE(seven);
  CHECK(seven->pipelines.size() == 7);
  CHECK(seven->control_cpus.empty());
  const auto eight = plan(config::Config{}, appliance::machine(2, 4));
  REQUIRE(eight);
  CHECK(appliance::cpus_of(*eight) == std::vector<int>{1, 2, 3, 5, 6, 7});
  CHECK(eight->control_cpus == std::vector<int>{0, 4});
  CHECK(eight->nodes[1].control_cpus == std::vector<int>{4});
  CHECK(eight->nodes[1].pipelines == std::vector<uint32_t>{3, 4, 5});
}

TEST_CASE("one pipeline per physical core: the other threads stay idle") {
  const auto topology = plan(config::Config{}, appliance::machine(1, 8, 2));
  REQUIRE(topology);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
  CHECK(topology->control_cpus == std::vector<int>{0, 8});
}

TEST_CASE("pipeline.cores is respected and nothing is kept back from it") {
  config::Config config;
  config.pipeline.cores = {2, 3, 9};
  const auto topology = plan(config, appliance::machine(1, 16));
  REQUIRE(topology);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{2, 3, 9});
  config.pipeline.count = 2;
  CHECK(appliance::cpus_of(*plan(config, appliance::machine(1, 16))) == std::vector<int>{2, 3});
}

TEST_CASE("pipeline.cores out of range is an error that lists what there is") {
  config::Config config;
  config.pipeline.cores = {1, 2, 7};
  const auto topology = plan(config, appliance::machine(1, 2));
  REQUIRE_FALSE(topology);
  CHECK(topology.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(topology.error().message, Catch::Contains("pipeline.cores = 1-2,7") &&
                                           Catch::Contains("cpus 2,7 do not exist") &&
                                           Catch::Contains("choose among 0-1"));
}

TEST_CASE("two threads of one core cannot both run a pipeline") {
  config::Config config;
  config.pipeline.cores = {1, 5};
  const auto topology = plan(config, appliance::machine(1, 4, 2));
  REQUIRE_FALSE(topology);
  CHECK_THAT(topology.error().message, Catch::Contains("cpus 1 and 5 are threads of one core"));
}

TEST_CASE("more pipelines than physical cores is an error that says how many fit") {
  config::Config config;
  config.pipeline.count = 3;
  const auto topology = plan(config, appliance::machine(1, 2, 2));
  REQUIRE_FALSE(topology);
  CHECK_THAT(topology.error().message,
             Catch::Contains("pipeline.count = 3") && Catch::Contains("give at most 2"));
}

TEST_CASE("pipelines that sleep and are pinned nowhere may be more than cores") {
  config::Config config;
  config.pipeline.count = 5;
  config.pipeline.pin = config::OnOffAuto::kOff;
  const auto topology = plan(config, appliance::machine(1, 2));
  REQUIRE(topology);
  REQUIRE(topology->pipelines.size() == 5);
  CHECK_FALSE(topology->pipelines[4].pinned);
  CHECK(topology->pipelines[4].udp_port == topology->pipelines[0].udp_port + 4);
  CHECK(appliance::has_reason(*topology, "5 on 2 cores"));
  CHECK(appliance::has_reason(*topology, "pipelines share cores"));

  config.pipeline.poll = config::PollMode::kBusy;
  CHECK_FALSE(plan(config, appliance::machine(1, 2)));
}

TEST_CASE("a count that needs every core gets every core") {
  config::Config config;
  config.pipeline.count = 8;
  const auto topology = plan(config, appliance::machine(1, 8));
  REQUIRE(topology);
  CHECK(topology->pipelines.size() == 8);
  CHECK(appliance::has_reason(*topology, "needs every core"));
  CHECK(appliance::has_reason(*topology, "control and admin share cores"));
}

TEST_CASE("a control group's quota counts as the cores it pays for") {
  auto facts = appliance::machine(1, 16);
  facts.cpu_quota = 1.5;
  const auto topology = plan(config::Config{}, facts);
  REQUIRE(topology);
  CHECK(topology->pipelines.size() == 1);
  CHECK_FALSE(topology->pipelines[0].pinned);
  CHECK(appliance::has_reason(*topology, "grants the CPU time of 1 of 16 cores"));
}

TEST_CASE("port 0 leaves every port to the kernel") {
  config::Config config;
  config.data.port_first = 0;
  const auto topology = plan(config, appliance::machine(1, 2));
  REQUIRE(topology);
  for (const auto& pipeline : topology->pipelines) CHECK(pipeline.udp_port == 0);
}

TEST_CASE("a machine without a usable core has no plan") {
  CHECK_FALSE(plan(config::Config{}, host::HostFacts{}));
}

TEST_CASE("indices are dense, and no plan has more pipelines than the limit") {
  const auto topology = plan(config::Config{}, appliance::machine(2, 64));
  REQUIRE(topology);
  REQUIRE(topology->pipelines.size() == limits::kPipelinesMax);
  for (uint32_t i = 0; i < limits::kPipelinesMax; ++i) CHECK(topology->pipelines[i].index == i);
  CHECK(topology->nodes[0].pipelines.size() == topology->nodes[1].pipelines.size());
}

TEST_CASE("the only core near the NIC is not reserved for control") {
  auto facts = appliance::machine(2, 8);
  appliance::add_nic(facts, 0);
  std::erase_if(facts.cores, [](const auto& core) { return core.node == 0 && core.cpus[0] != 0; });
  REQUIRE(facts.cores.size() == 9);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{0});
  CHECK(appliance::has_reason(*topology, "none is reserved for control"));
}

}  // namespace pbox::topology
