// Machines and configurations as values, for tests of the plan.
#pragma once

#include <string>
#include <vector>

#include "appliance/topology/plan.h"

namespace pbox::appliance {

inline constexpr uint64_t kNodeBytes = 16ull << 30;

// `node_count` nodes of 16 GiB with `cores_per_node` cores each. CPUs are numbered as Linux does:
// first threads of all cores, then second threads.
host::HostFacts machine(int node_count, int cores_per_node, int threads_per_core = 1);

// Adds a NIC with its own address 10.0.N.1, N its number, and returns it.
host::Nic& add_nic(host::HostFacts& facts, int node, uint32_t link_mbps = 0);

// Adds a network device 0000:0N:00.0 on PCI, N its number, and returns it.
host::PciNetwork& add_pci(host::HostFacts& facts, int node, const std::string& driver = "vfio-pci");

// Returns a configuration without keys that serves the devices: dpdk.devices = `devices`.
config::Config dpdk_config(const std::string& devices);

// Returns a configuration without keys that serves all NICs.
config::Config open_config();

bool has_reason(const topology::Topology& topology, const std::string& words);
std::vector<int> cpus_of(const topology::Topology& topology);
std::vector<std::string> nics_of(const topology::Topology& topology);

}  // namespace pbox::appliance
