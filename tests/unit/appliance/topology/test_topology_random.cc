#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/rng.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::topology {
namespace {

host::HostFacts random_machine(Rng& rng) {
  const int node_count = 1 + static_cast<int>(rng.below(4));
  // One draw per statement: compilers differ in the order of arguments.
  const int cores_per_node = 1 + static_cast<int>(rng.below(20));
  const int threads_per_core = 1 + static_cast<int>(rng.below(2));
  auto facts = appliance::machine(node_count, cores_per_node, threads_per_core);
  for (uint64_t nics = rng.below(9); nics > 0; --nics) {
    const int node = static_cast<int>(rng.below(static_cast<uint64_t>(node_count) + 1)) - 1;
    const uint32_t link_mbps = rng.below(2) == 0 ? 0 : 10'000;
    appliance::add_nic(facts, node, link_mbps);
  }
  for (uint64_t devices = rng.below(6); devices > 0; --devices) {
    appliance::add_pci(facts,
                       static_cast<int>(rng.below(static_cast<uint64_t>(node_count) + 1)) - 1);
  }
  // A cpuset takes cores away.
  for (uint64_t lost = rng.below(4); lost > 0 && facts.cores.size() > 1; --lost) {
    facts.cores.erase(facts.cores.begin() + static_cast<long>(rng.below(facts.cores.size())));
  }
  if (rng.below(4) == 0) facts.cpu_quota = 0.5 + 10 * rng.unit();
  return facts;
}

// All devices on PCI and a virtual one; some share their address.
config::Config random_dpdk_config(Rng& rng, const host::HostFacts& facts) {
  std::string items = "net_ring0 10.0.0.1/24";
  for (const auto& device : facts.pci_network) {
    items += "; " + device.address + " 10.0.0." + std::to_string(1 + rng.below(9)) + "/24";
  }
  return appliance::dpdk_config(items);
}

config::Config random_config(Rng& rng, const host::HostFacts& facts) {
  auto config = rng.below(3) == 0 ? config::Config{} : appliance::open_config();
  if (rng.below(3) == 0) config = random_dpdk_config(rng, facts);
  if (rng.below(3) == 0) config.pipeline.count = static_cast<uint32_t>(rng.below(20));
  if (rng.below(4) == 0) config.pipeline.numa = config::OnOffAuto::kOff;
  if (rng.below(3) == 0) config.pipeline.poll = config::PollMode::kBusy;
  if (rng.below(4) == 0) {
    for (const auto& core : facts.cores) {
      if (rng.below(2) == 0) config.pipeline.cores.push_back(core.cpus.back());
    }
  }
  return config;
}

void check_plan(const config::Config& config, const host::HostFacts& facts,
                const Topology& topology) {
  REQUIRE_FALSE(topology.pipelines.empty());
  if (config.pipeline.count != 0) CHECK(topology.pipelines.size() == config.pipeline.count);
  std::map<int, const host::Core*> core_of;
  for (const auto& core : facts.cores) {
    for (const int cpu : core.cpus) core_of[cpu] = &core;
  }
  std::map<std::string, int> node_of;
  for (const auto& nic : facts.nics) node_of[nic.name] = nic.node;
  for (const auto& device : facts.pci_network) node_of[device.address] = device.node;
  std::set<const host::Core*> taken;
  std::map<std::string, uint32_t> queues;
  uint64_t arena_bytes = 0;
  for (const auto& pipeline : topology.pipelines) {
    REQUIRE(core_of.count(pipeline.cpu) == 1);
    CHECK(taken.insert(core_of[pipeline.cpu]).second);
    if (!pipeline.nic.empty()) CHECK(pipeline.queue == queues[pipeline.nic]++);
    arena_bytes += pipeline.arena_bytes;
    if (config.pipeline.numa == config::OnOffAuto::kOff) continue;
    CHECK(core_of[pipeline.cpu]->node == pipeline.node);
    for (const uint32_t index : pipeline.devices) {
      const auto found = node_of.find(config.dpdk.devices[index].device);
      if (found == node_of.end() || found->second == host::kUnknownNode) continue;
      CHECK(found->second == pipeline.node);
    }
    if (node_of.count(pipeline.nic) == 0 || node_of[pipeline.nic] == host::kUnknownNode) continue;
    CHECK(node_of[pipeline.nic] == pipeline.node);
  }
  uint64_t packet_bytes = 0;
  for (const auto& node : topology.nodes) packet_bytes += node.packet_memory_bytes;
  CHECK((packet_bytes > 0) == (config.data.port == config::PortKind::kDpdk));
  CHECK(topology.job_memory_bytes + packet_bytes <= facts.memory_bytes);
  CHECK(arena_bytes <= topology.job_memory_bytes);
  for (const int cpu : topology.control_cpus) CHECK(taken.count(core_of[cpu]) == 0);
}

}  // namespace

TEST_CASE("any machine gets a plan that keeps the rules, or a reason why there is none") {
  size_t planned = 0;
  constexpr uint64_t kMachines = 3'000;
  for (uint64_t seed = 0; seed < kMachines; ++seed) {
    CAPTURE(seed);
    Rng rng(seed);
    const auto facts = random_machine(rng);
    const auto config = random_config(rng, facts);
    const auto topology = plan(config, facts);
    if (topology) {
      ++planned;
      check_plan(config, facts, *topology);
      CHECK(plan(config, facts).value() == *topology);
    } else {
      CHECK_THAT(topology.error().message, Catch::Contains("pipeline.") ||
                                               Catch::Contains("NIC ") ||
                                               Catch::Contains("dpdk.devices"));
    }
  }
  // Most of what is drawn can be planned; else the checks above would hardly run.
  CHECK(planned > kMachines / 2);
}

}  // namespace pbox::topology
