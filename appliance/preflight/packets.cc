#include <algorithm>

#include "appliance/host/pci_network.h"
#include "appliance/preflight/checks.h"
#include "config/dpdk_device.h"

namespace pbox::preflight::checks {
namespace {

// Returns whether a NIC reads and writes packet memory, so that the kernel locks it.
bool has_pci_device(const config::Config& config) {
  const auto& devices = config.dpdk.devices;
  return std::any_of(devices.begin(), devices.end(), [](const config::DpdkDevice& each) {
    return config::is_pci_device(each.device);
  });
}

Check check_pages(const config::Config& config, const host::HostFacts& facts,
                  const Result<topology::Topology>& topology) {
  const std::string name = "packet-memory";
  if (!topology) return ok(name, "not checked: there is no plan");
  if (config.dpdk.no_huge) {
    const std::string finding = "dpdk.no_huge = true: packets are in ordinary pages";
    if (!has_pci_device(config)) return ok(name, finding);
    return warn(name, finding + ", which cost a NIC more time for each packet",
                "dpdk.no_huge = false");
  }
  std::string missing;
  std::string commands;
  for (const auto& node : facts.nodes) {
    const auto plan =
        std::find_if(topology->nodes.begin(), topology->nodes.end(),
                     [&](const topology::NodePlan& each) { return each.node == node.node; });
    if (plan == topology->nodes.end()) continue;
    const uint64_t needed = plan->packet_memory_bytes;
    const uint64_t free_bytes =
        node.hugepages_free * host::kHugepageBytes + node.giant_pages_free * host::kGiantPageBytes;
    if (free_bytes >= needed) continue;
    const std::string index = std::to_string(node.node);
    const uint64_t pages = node.hugepages_total +
                           (needed - free_bytes + host::kHugepageBytes - 1) / host::kHugepageBytes;
    append(missing, "; ",
           "node " + index + " has " + mebibytes(free_bytes) + " in free hugepages, and packets " +
               "need " + mebibytes(needed));
    append(commands, "; ",
           "echo " + std::to_string(pages) + " > /sys/devices/system/node/node" + index +
               "/hugepages/hugepages-2048kB/nr_hugepages");
  }
  if (!missing.empty()) {
    return fail(name, missing,
                "systemctl enable --now pbox-hugepages.service, or at least: " + commands +
                    "; without hugepages, for development, dpdk.no_huge = true");
  }
  if (!facts.can_map_hugepages) {
    return fail(name, "hugepages are free, but this process may not map them",
                "raise hugetlb.2MB.max of its control group, or set dpdk.no_huge = true");
  }
  return ok(name, "free hugepages cover the packet memory on every node");
}

Check check_memlock(const config::Config& config, const host::HostFacts& facts,
                    const Result<topology::Topology>& topology) {
  const std::string name = "memlock";
  if (facts.memlock_bytes == host::kUnlimited) return ok(name, "unlimited");
  const std::string limit = mebibytes(facts.memlock_bytes);
  if (!has_pci_device(config)) return ok(name, limit + "; virtual devices lock no memory");
  if (!topology) return ok(name, "not checked: there is no plan");
  uint64_t needed = 0;
  for (const auto& node : topology->nodes) needed += node.packet_memory_bytes;
  if (facts.can_lock_memory) return ok(name, limit + ", which CAP_IPC_LOCK lifts");
  if (facts.memlock_bytes >= needed) return ok(name, limit + " for " + mebibytes(needed));
  return fail(name, limit + ", but NICs need " + mebibytes(needed) + " locked",
              "LimitMEMLOCK=infinity, as the shipped unit has it, or ulimit -l unlimited");
}

}  // namespace

std::vector<Check> packet_memory_checks(const config::Config& config, const host::HostFacts& facts,
                                        const Result<topology::Topology>& topology) {
  return {check_pages(config, facts, topology), check_memlock(config, facts, topology)};
}

}  // namespace pbox::preflight::checks
