#include <catch2/catch.hpp>
#include <map>

#include "tests/unit/appliance/machines.h"

namespace pbox::topology {
namespace {

// Checks that every pipeline's core is on its NIC's node, that no core serves two, and that queues
// of a NIC are dense.
void check_affinity(const Topology& topology, const host::HostFacts& facts) {
  std::map<int, int> pipelines_on_cpu;
  std::map<std::string, uint32_t> queues;
  for (const auto& pipeline : topology.pipelines) {
    CHECK(++pipelines_on_cpu[pipeline.cpu] == 1);
    CHECK(pipeline.queue == queues[pipeline.nic]++);
    for (const auto& core : facts.cores) {
      if (core.cpus[0] == pipeline.cpu) CHECK(core.node == pipeline.node);
    }
    for (const auto& nic : facts.nics) {
      if (nic.name == pipeline.nic) CHECK(nic.node == pipeline.node);
    }
  }
}

}  // namespace

TEST_CASE("a NIC's pipelines are on its node, and the other node runs none") {
  auto facts = appliance::machine(2, 8);
  appliance::add_nic(facts, 1);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{9, 10, 11, 12, 13, 14, 15});
  CHECK(topology->pipelines[0].address == "10.0.0.1");
  CHECK(appliance::has_reason(*topology, "cpus 0-7 run no pipeline"));
  CHECK(topology->nodes[0].job_memory_bytes == 0);
  CHECK(topology->control_cpus == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("NICs get equal numbers of pipelines even where cores are left over") {
  auto facts = appliance::machine(2, 8);
  for (const int node : {0, 0, 0, 1, 1}) appliance::add_nic(facts, node);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  std::map<std::string, int> count;
  for (const auto& name : appliance::nics_of(*topology)) ++count[name];
  CHECK(count.size() == 5);
  for (const auto& [name, pipelines] : count) CHECK(pipelines == 2);
  CHECK(
      appliance::has_reason(*topology, "2 pipelines for each of 5 NICs; 4 cores run no pipeline"));
}

TEST_CASE("a few pipelines are spread over sockets first") {
  auto facts = appliance::machine(2, 8);
  for (const int node : {0, 0, 1, 1}) appliance::add_nic(facts, node);
  auto config = appliance::open_config();
  config.pipeline.count = 2;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  CHECK(appliance::nics_of(*topology) == std::vector<std::string>{"eth0", "eth2"});
  CHECK(appliance::has_reason(
      *topology, "there are fewer pipelines than NICs; NICs without a pipeline: eth1, eth3"));
}

TEST_CASE("a count that is no multiple of the NICs is obeyed, and its cost is named") {
  auto facts = appliance::machine(1, 8);
  appliance::add_nic(facts, 0);
  appliance::add_nic(facts, 0);
  auto config = appliance::open_config();
  config.pipeline.count = 5;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  CHECK(appliance::has_reason(*topology, "NICs have from 2 to 3 pipelines"));
}

TEST_CASE("listening on one NIC's address uses that NIC alone") {
  auto facts = appliance::machine(2, 4);
  appliance::add_nic(facts, 0);
  appliance::add_nic(facts, 1);
  auto config = appliance::open_config();
  config.box.listen = "10.0.1.1";
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  for (const auto& name : appliance::nics_of(*topology)) CHECK(name == "eth1");
}

TEST_CASE("an address of no PCI NIC, as a bond's, spreads pipelines without regard to NICs") {
  auto facts = appliance::machine(2, 4);
  appliance::add_nic(facts, 0);
  auto config = appliance::open_config();
  config.box.listen = "10.9.9.9";
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(topology->pipelines.size() == 6);
  CHECK(topology->pipelines[0].address == "10.9.9.9");
  CHECK(appliance::has_reason(*topology, "without regard to NICs"));
}

TEST_CASE("a NIC without a NUMA node is served from the node that has fewest NICs") {
  auto facts = appliance::machine(2, 4);
  appliance::add_nic(facts, 0);
  appliance::add_nic(facts, host::kUnknownNode);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  CHECK(topology->pipelines.size() == 6);
  for (const auto& pipeline : topology->pipelines) {
    CHECK(pipeline.node == (pipeline.nic == "eth0" ? 0 : 1));
  }
  CHECK(appliance::has_reason(
      *topology, "NIC eth1: the firmware names no NUMA node, so it is served from node 1"));
}

TEST_CASE("on one node an unknown NUMA node is no question") {
  auto facts = appliance::machine(1, 2);
  appliance::add_nic(facts, host::kUnknownNode);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  CHECK(appliance::nics_of(*topology) == std::vector<std::string>{"eth0", "eth0"});
  CHECK(topology->pipelines[0].node == 0);
  CHECK_FALSE(appliance::has_reason(*topology, "firmware"));
}

TEST_CASE("a slow NIC is left out when the others carry more without it") {
  auto facts = appliance::machine(1, 12);
  appliance::add_nic(facts, 0, 1'000);
  appliance::add_nic(facts, 0, 40'000);
  appliance::add_nic(facts, 0, 40'000);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  for (const auto& name : appliance::nics_of(*topology)) CHECK(name != "eth0");
  CHECK(appliance::has_reason(*topology, "NIC eth0: left out, its 1000 Mb/s would slow down"));
}

TEST_CASE("one fast NIC does not silence many slower ones") {
  auto facts = appliance::machine(1, 12);
  for (const uint32_t mbps : {25'000u, 25'000u, 25'000u, 40'000u})
    appliance::add_nic(facts, 0, mbps);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  CHECK_FALSE(appliance::has_reason(*topology, "left out"));
}

TEST_CASE("under 0.0.0.0 a NIC without an IPv4 address is left out; :: takes it") {
  auto facts = appliance::machine(1, 12);
  appliance::add_nic(facts, 0);
  appliance::add_nic(facts, 0).addresses = {"2001:db8::1"};
  auto config = appliance::open_config();
  const auto v4 = plan(config, facts);
  REQUIRE(v4);
  CHECK(appliance::has_reason(*v4, "NIC eth1: left out, it has no address for 0.0.0.0"));
  config.box.listen = "::";
  const auto both = plan(config, facts);
  REQUIRE(both);
  CHECK(both->pipelines.back().address == "2001:db8::1");
}

TEST_CASE("pipeline.cores far from the NICs is an error unless numa is off") {
  auto facts = appliance::machine(2, 4);
  appliance::add_nic(facts, 0);
  auto config = appliance::open_config();
  config.pipeline.cores = {2, 5};
  const auto refused = plan(config, facts);
  REQUIRE_FALSE(refused);
  CHECK_THAT(refused.error().message, Catch::Contains("cpus 5 are on a NUMA node without") &&
                                          Catch::Contains("pipeline.numa = off"));
  config.pipeline.numa = config::OnOffAuto::kOff;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(appliance::cpus_of(*topology) == std::vector<int>{2, 5});
  CHECK(topology->pipelines[0].node == host::kUnknownNode);
  CHECK(appliance::has_reason(*topology, "pipeline.numa = off"));
}

TEST_CASE("a cpuset away from every NIC's node is an error") {
  auto facts = appliance::machine(2, 4);
  facts.cores.erase(facts.cores.begin(), facts.cores.begin() + 4);
  appliance::add_nic(facts, 0);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE_FALSE(topology);
  CHECK_THAT(topology.error().message, Catch::Contains("NIC eth0 is on NUMA node 0"));
}

TEST_CASE("a node with more NICs than cores serves as many as it can") {
  auto facts = appliance::machine(2, 5);
  for (int i = 0; i < 6; ++i) appliance::add_nic(facts, 0);
  const auto topology = plan(appliance::open_config(), facts);
  REQUIRE(topology);
  check_affinity(*topology, facts);
  CHECK(topology->pipelines.size() == 4);
  CHECK(appliance::has_reason(*topology, "NICs without a pipeline: eth4, eth5"));
}

}  // namespace pbox::topology
