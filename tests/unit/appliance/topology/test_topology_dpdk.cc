#include <catch2/catch.hpp>

#include "tests/unit/appliance/machines.h"

namespace pbox::topology {
namespace {

constexpr uint64_t kMebibyte = 1u << 20;

std::string error_of(const config::Config& config, const host::HostFacts& facts) {
  const auto topology = plan(config, facts);
  REQUIRE_FALSE(topology);
  return topology.error().message;
}

}  // namespace

TEST_CASE("a device's pipelines are on its node, at its address, with a queue and a port each") {
  auto facts = appliance::machine(2, 8);
  appliance::add_pci(facts, 0);
  appliance::add_pci(facts, 1);
  const auto topology =
      plan(appliance::dpdk_config("0000:01:00.0 10.0.1.1/24; 0000:00:00.0 10.0.0.1/24 fd00::1/64"),
           facts);
  REQUIRE(topology);
  REQUIRE(topology->pipelines.size() == 14);
  for (const auto& pipeline : topology->pipelines) {
    const bool is_first_node = pipeline.index < 7;
    CHECK(pipeline.node == (is_first_node ? 0 : 1));
    CHECK(pipeline.nic == (is_first_node ? "0000:00:00.0" : "0000:01:00.0"));
    CHECK(pipeline.devices == std::vector<uint32_t>{is_first_node ? 1u : 0u});
    CHECK(pipeline.address == (is_first_node ? "10.0.0.1" : "10.0.1.1"));
    CHECK(pipeline.queue == pipeline.index % 7);
    CHECK(pipeline.udp_port == 9542 + pipeline.index);
  }
  CHECK(appliance::has_reason(*topology,
                              "box.listen = 127.0.0.1 is the address of control connections only"));
  CHECK(appliance::has_reason(*topology, "0000:00:00.0 serves pipelines 0-6 at 10.0.0.1"));
  CHECK(appliance::has_reason(*topology, "not known before they are opened"));
}

TEST_CASE("devices of equal addresses are one server, and each pipeline has its queue on both") {
  const auto topology =
      plan(appliance::dpdk_config("net_memif0,id=0 10.0.0.1/24; net_memif1,id=1 10.0.0.1/24"),
           appliance::machine(1, 2));
  REQUIRE(topology);
  CHECK(appliance::nics_of(*topology) ==
        std::vector<std::string>{"net_memif0+net_memif1", "net_memif0+net_memif1"});
  CHECK(topology->pipelines[1].queue == 1);
  CHECK(topology->pipelines[1].devices == std::vector<uint32_t>{0, 1});
  CHECK(appliance::has_reason(*topology, "net_memif0+net_memif1 serve pipelines 0-1 at 10.0.0.1"));
}

TEST_CASE("a virtual device is served where the cores are that serve fewest others") {
  auto facts = appliance::machine(2, 8);
  appliance::add_pci(facts, 0);
  const auto topology =
      plan(appliance::dpdk_config("0000:00:00.0 10.0.0.1/24; net_ring0 10.0.1.1/24"), facts);
  REQUIRE(topology);
  for (const auto& pipeline : topology->pipelines) {
    CHECK(pipeline.node == (pipeline.nic == "net_ring0" ? 1 : 0));
  }
  CHECK(appliance::has_reason(*topology,
                              "NIC net_ring0: it is not on PCI, so it is served from node 1"));
}

TEST_CASE("a device that is not there is an error that lists those that are") {
  auto facts = appliance::machine(1, 4);
  appliance::add_pci(facts, 0);
  appliance::add_pci(facts, 0, "virtio-pci").interface = "eth0";
  const auto error =
      error_of(appliance::dpdk_config(
                   "0000:99:00.0 10.0.0.1/24; 0000:98:00.0 10.0.1.1/24; net_ring0 10.0.2.1/24"),
               facts);
  CHECK_THAT(error, Catch::Contains("0000:99:00.0 is not a network device of test machine"));
  CHECK_THAT(error, Catch::Contains("0000:98:00.0 is not a network device"));
  CHECK_THAT(error, Catch::Contains("0000:00:00.0 (vfio-pci), 0000:01:00.0 (virtio-pci, eth0)"));
  CHECK_THAT(error_of(appliance::dpdk_config("0000:99:00.0 10.0.0.1/24"), appliance::machine(1, 4)),
             Catch::Contains("it has none on PCI"));
}

TEST_CASE("a device that the kernel drives is an error that names the command and what it costs") {
  auto facts = appliance::machine(1, 4);
  appliance::add_pci(facts, 0, "ixgbe").interface = "ens1";
  const auto config = appliance::dpdk_config("0000:00:00.0 10.0.0.1/24");
  CHECK_THAT(error_of(config, facts),
             Catch::Contains("dpdk-devbind.py --bind=vfio-pci 0000:00:00.0") &&
                 Catch::Contains("interface ens1 disappears"));
  facts.pci_network[0].driver = "mlx5_core";
  CHECK(plan(config, facts));
}

TEST_CASE("devices on different nodes cannot share addresses, unless nodes do not matter") {
  auto facts = appliance::machine(2, 4);
  appliance::add_pci(facts, 0);
  appliance::add_pci(facts, 1);
  auto config = appliance::dpdk_config("0000:00:00.0 10.0.0.1/24; 0000:01:00.0 10.0.0.1/24");
  CHECK_THAT(error_of(config, facts), Catch::Contains("NUMA nodes 0 and 1"));
  config.pipeline.numa = config::OnOffAuto::kOff;
  const auto topology = plan(config, facts);
  REQUIRE(topology);
  CHECK(topology->nodes[0].packet_memory_bytes > 0);
  CHECK(topology->nodes[1].packet_memory_bytes == 0);
}

TEST_CASE("a device that no core is near is refused, not left out") {
  auto facts = appliance::machine(2, 4);
  appliance::add_pci(facts, 0);
  appliance::add_pci(facts, 1);
  auto config = appliance::dpdk_config("0000:00:00.0 10.0.0.1/24; 0000:01:00.0 10.0.1.1/24");
  config.pipeline.cores = {0, 1};
  CHECK_THAT(error_of(config, facts), Catch::Contains("0000:01:00.0 is on NUMA node 1"));
  config.pipeline.cores = {0, 4};
  CHECK(plan(config, facts));
}

TEST_CASE("an idle pipeline's nap is named where polling is adaptive, and only there") {
  auto config = appliance::dpdk_config("net_ring0 10.0.0.1/24");
  CHECK(appliance::has_reason(*plan(config, appliance::machine(1, 2)), "idle pipelines sleep"));
  config.pipeline.poll = config::PollMode::kBusy;
  CHECK_FALSE(
      appliance::has_reason(*plan(config, appliance::machine(1, 2)), "idle pipelines sleep"));
}

TEST_CASE("packet memory grows with queues and mtu, and jobs do not get it") {
  auto config = appliance::dpdk_config("net_ring0 10.0.0.1/24");
  config.pipeline.count = 1;
  const auto one = plan(config, appliance::machine(1, 2));
  REQUIRE(one);
  const uint64_t one_bytes = one->nodes[0].packet_memory_bytes;
  // Each buffer takes 2048 bytes and 320 bytes around them.
  CHECK(one_bytes >= (64 * kMebibyte) + kPacketBuffersPerQueue * 2368ull);
  CHECK(one_bytes < (64 * kMebibyte) + kPacketBuffersPerQueue * 2368ull + host::kHugepageBytes);
  config.data.mtu = 9'000;
  CHECK(plan(config, appliance::machine(1, 2))->nodes[0].packet_memory_bytes >=
        (64 * kMebibyte) + kPacketBuffersPerQueue * 9'344ull);
  config.data.mtu = 0;
  config.pipeline.count = 2;
  const auto two = plan(config, appliance::machine(1, 2));
  CHECK(two->nodes[0].packet_memory_bytes - one_bytes <=
        kPacketBuffersPerQueue * 2368ull + host::kHugepageBytes);
  CHECK(two->nodes[0].packet_memory_bytes > one_bytes);
  CHECK(two->job_memory_bytes < one->job_memory_bytes);
}

TEST_CASE("packet memory that is given is obeyed, up to what the node has") {
  auto config = appliance::dpdk_config("net_ring0 10.0.0.1/24");
  config.dpdk.memory_mib = 1'000;
  const auto topology = plan(config, appliance::machine(1, 2));
  REQUIRE(topology);
  CHECK(topology->nodes[0].packet_memory_bytes == 1'000 * kMebibyte);
  CHECK(appliance::has_reason(*topology,
                              "dpdk.memory_mib = 1000: 1000 MiB of packet memory on node 0"));
  CHECK(
      topology->job_memory_bytes ==
      static_cast<uint64_t>(static_cast<double>(appliance::kNodeBytes - 1'000 * kMebibyte) * 0.85));
  config.dpdk.memory_mib = 1u << 20;
  CHECK_THAT(error_of(config, appliance::machine(1, 2)),
             Catch::Contains("dpdk.memory_mib = 1048576") && Catch::Contains("give fewer MiB"));
}

TEST_CASE("packet memory takes 1 GiB pages first, then 2 MiB pages, and arenas what is left") {
  auto config = appliance::dpdk_config("net_ring0 10.0.0.1/24");
  config.dpdk.memory_mib = 1'024;
  auto facts = appliance::machine(1, 2);
  facts.nodes[0].hugepages_total = facts.nodes[0].hugepages_free = 512;
  CHECK_FALSE(plan(config, facts)->pipelines[0].hugepages);
  facts.nodes[0].hugepages_free = facts.nodes[0].hugepages_total = 513;
  CHECK(plan(config, facts)->pipelines[0].hugepages);
  facts.nodes[0].hugepages_free = facts.nodes[0].hugepages_total = 1;
  facts.nodes[0].giant_pages_free = facts.nodes[0].giant_pages_total = 1;
  CHECK(plan(config, facts)->pipelines[0].hugepages);
  config.dpdk.no_huge = true;
  const auto ordinary = plan(config, facts);
  CHECK(ordinary->pipelines[0].hugepages);
  CHECK(appliance::has_reason(*ordinary, "in ordinary pages"));
}

}  // namespace pbox::topology
