#include "tests/unit/appliance/machines.h"

#include "config/dpdk_device.h"

namespace pbox::appliance {

host::HostFacts machine(int node_count, int cores_per_node, int threads_per_core) {
  host::HostFacts facts;
  facts.source = "test machine";
  const int core_count = node_count * cores_per_node;
  for (int node = 0; node < node_count; ++node) {
    facts.nodes.push_back(host::NumaNode{node, kNodeBytes, 0, 0});
    facts.memory_bytes += kNodeBytes;
  }
  for (int index = 0; index < core_count; ++index) {
    host::Core core;
    core.package = core.node = index / cores_per_node;
    for (int thread = 0; thread < threads_per_core; ++thread) {
      core.cpus.push_back(thread * core_count + index);
    }
    facts.cores.push_back(core);
  }
  for (int cpu = 0; cpu < core_count * threads_per_core; ++cpu) facts.allowed_cpus.push_back(cpu);
  facts.memlock_bytes = host::kUnlimited;
  return facts;
}

host::Nic& add_nic(host::HostFacts& facts, int node, uint32_t link_mbps) {
  const std::string number = std::to_string(facts.nics.size());
  host::Nic nic;
  nic.name = "eth" + number;
  nic.pci_address = "0000:0" + number + ":00.0";
  nic.node = node;
  nic.link_mbps = link_mbps;
  nic.addresses = {"10.0." + number + ".1"};
  facts.addresses.push_back(nic.addresses[0]);
  facts.nics.push_back(nic);
  return facts.nics.back();
}

host::PciNetwork& add_pci(host::HostFacts& facts, int node, const std::string& driver) {
  host::PciNetwork device;
  device.address = "0000:0" + std::to_string(facts.pci_network.size()) + ":00.0";
  device.node = node;
  device.driver = driver;
  device.iommu_group = std::to_string(10 + facts.pci_network.size());
  device.vfio_accessible = true;
  facts.pci_network.push_back(device);
  return facts.pci_network.back();
}

config::Config dpdk_config(const std::string& devices) {
  auto config = open_config();
  config.box.listen = "127.0.0.1";
  config.data.port = config::PortKind::kDpdk;
  config.dpdk.devices = config::read_dpdk_devices(devices).devices;
  return config;
}

config::Config open_config() {
  config::Config config;
  config.box.listen = "0.0.0.0";
  config.security.insecure = config::OnOffAuto::kOn;
  config.security.insecure_off_loopback = true;
  return config;
}

bool has_reason(const topology::Topology& topology, const std::string& words) {
  for (const auto& reason : topology.reasons) {
    if (reason.find(words) != std::string::npos) return true;
  }
  return false;
}

std::vector<int> cpus_of(const topology::Topology& topology) {
  std::vector<int> cpus;
  for (const auto& pipeline : topology.pipelines) cpus.push_back(pipeline.cpu);
  return cpus;
}

std::vector<std::string> nics_of(const topology::Topology& topology) {
  std::vector<std::string> nics;
  for (const auto& pipeline : topology.pipelines) nics.push_back(pipeline.nic);
  return nics;
}

}  // namespace pbox::appliance
