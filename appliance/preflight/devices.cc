#include <algorithm>

#include "appliance/host/pci_network.h"
#include "appliance/preflight/checks.h"
#include "config/address.h"
#include "config/cpu_list.h"
#include "config/dpdk_device.h"

namespace pbox::preflight::checks {
namespace {

constexpr char kDropIn[] =
    "copy the shipped pboxd-dpdk.conf to /etc/systemd/system/pboxd.service.d, or run as root";
constexpr char kIommu[] = "boot with intel_iommu=on iommu=pt (on AMD iommu=pt)";

// Collects findings into one check with the worst of their levels.
struct Findings {
  CheckLevel level = CheckLevel::kOk;
  std::string found;
  std::string remedy;

  void add(CheckLevel at, const std::string& finding, const std::string& remedy_text) {
    level = std::max(level, at);
    append(found, "; ", finding);
    append(remedy, "; ", remedy_text);
  }
  Check as(const std::string& name, const std::string& if_none) const {
    return Check{name, level, found.empty() ? if_none : found, remedy};
  }
};

// Returns the existing PCI devices among dpdk.devices. The plan fails for PCI devices that do not
// exist.
std::vector<const host::PciNetwork*> pci_devices(const config::Config& config,
                                                 const host::HostFacts& facts) {
  std::vector<const host::PciNetwork*> found;
  for (const auto& each : config.dpdk.devices) {
    for (const auto& device : facts.pci_network) {
      if (device.address == each.device) found.push_back(&device);
    }
  }
  return found;
}

// Returns the virtual devices that send through a kernel interface.
std::vector<std::string> packet_devices(const config::Config& config) {
  std::vector<std::string> found;
  for (const auto& each : config.dpdk.devices) {
    if (config::is_device_kind(each.device, "net_af_packet")) found.push_back(each.device);
  }
  return found;
}

Check check_drivers(const config::Config& config, const host::HostFacts& facts) {
  Findings findings;
  for (const host::PciNetwork* device : pci_devices(config, facts)) {
    const std::string& address = device->address;
    const std::string bind = "dpdk-devbind.py --bind=vfio-pci " + address;
    switch (host::binding_of(*device)) {
      case host::PciBinding::kNone:
        findings.add(CheckLevel::kFail, address + " has no driver",
                     (facts.vfio.is_loaded ? "" : "modprobe vfio-pci && ") + bind);
        break;
      case host::PciBinding::kVfio:
        if (device->vfio_accessible) break;
        findings.add(
            CheckLevel::kFail,
            address + ": this process may not open its IOMMU group, /dev/vfio/" +
                device->iommu_group,
            "install the shipped 60-pbox-vfio.rules and bind the device again, or run as root");
        break;
      case host::PciBinding::kUio:
        findings.add(
            CheckLevel::kWarn,
            address + " is bound to " + device->driver +
                ": without an IOMMU the device can write to all memory, and DPDK needs root",
            bind);
        break;
      case host::PciBinding::kBifurcated:
      case host::PciBinding::kKernel: break;  // the plan fails for the latter
    }
  }
  return findings.as("devices",
                     std::to_string(config.dpdk.devices.size()) + " of dpdk.devices can be opened");
}

Check check_iommu(const config::Config& config, const host::HostFacts& facts) {
  const std::string name = "iommu";
  const auto devices = pci_devices(config, facts);
  const bool needs_it =
      std::any_of(devices.begin(), devices.end(), [](const host::PciNetwork* each) {
        return host::binding_of(*each) == host::PciBinding::kVfio ||
               host::binding_of(*each) == host::PciBinding::kNone;
      });
  if (!needs_it) return ok(name, "no device of dpdk.devices needs an IOMMU");
  if (facts.vfio.iommu_active) return ok(name, "active");
  const std::string cost = "devices can write to all memory, and the box needs CAP_SYS_RAWIO";
  if (facts.vfio.allows_no_iommu)
    return warn(
        name,
        "no IOMMU is active, and vfio-pci does without one (enable_unsafe_noiommu_mode): " + cost,
        kIommu);
  return fail(name, "no IOMMU is active, and vfio-pci needs one",
              std::string(kIommu) +
                  ", or, if you trust everything that runs there, echo 1 > "
                  "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode; then " +
                  cost);
}

int node_of_cpu(const host::HostFacts& facts, int cpu) {
  for (const auto& core : facts.cores) {
    if (std::find(core.cpus.begin(), core.cpus.end(), cpu) != core.cpus.end()) return core.node;
  }
  return host::kUnknownNode;
}

Check check_nodes(const config::Config& config, const host::HostFacts& facts,
                  const Result<topology::Topology>& topology) {
  const std::string name = "nodes";
  if (!topology) return ok(name, "not checked: there is no plan");
  std::vector<int> far;
  for (const auto& pipeline : topology->pipelines) {
    const int node = node_of_cpu(facts, pipeline.cpu);
    const bool is_far =
        std::any_of(pipeline.devices.begin(), pipeline.devices.end(), [&](const uint32_t index) {
          const auto& device = config.dpdk.devices[index].device;
          return std::any_of(facts.pci_network.begin(), facts.pci_network.end(),
                             [&](const host::PciNetwork& each) {
                               return each.address == device && each.node != host::kUnknownNode &&
                                      each.node != node;
                             });
        });
    if (is_far) far.push_back(static_cast<int>(pipeline.index));
  }
  if (far.empty()) return ok(name, "every pipeline is on the NUMA node of its NIC");
  return warn(name,
              "pipelines " + config::print_cpu_list(far) +
                  " are on another NUMA node than their NIC: every byte crosses between nodes",
              "pipeline.numa = auto");
}

Check check_served(const config::Config& config, const Result<topology::Topology>& topology) {
  const std::string name = "served";
  if (!topology) return ok(name, "not checked: there is no plan");
  std::string idle;
  for (uint32_t index = 0; index < config.dpdk.devices.size(); ++index) {
    const bool is_served =
        std::any_of(topology->pipelines.begin(), topology->pipelines.end(),
                    [&](const topology::PipelinePlan& each) {
                      return std::count(each.devices.begin(), each.devices.end(), index) != 0;
                    });
    if (!is_served) append(idle, ", ", config::device_name(config.dpdk.devices[index].device));
  }
  if (idle.empty()) return ok(name, "every device has a pipeline");
  return warn(
      name,
      "no pipeline polls these devices, so the box does not answer packets that arrive there: " +
          idle,
      "raise pipeline.count, or remove these devices from dpdk.devices");
}

Check check_capabilities(const config::Config& config, const host::HostFacts& facts) {
  const auto devices = pci_devices(config, facts);
  const bool has_packet_devices = !packet_devices(config).empty();
  const bool needs_raw =
      has_packet_devices || std::any_of(devices.begin(), devices.end(), [](const auto* each) {
        return host::binding_of(*each) == host::PciBinding::kBifurcated;
      });
  std::string missing;
  if (needs_raw && !facts.can_open_raw_sockets) append(missing, ", ", "CAP_NET_RAW");
  if (has_packet_devices && !facts.can_force_buffers) append(missing, ", ", "CAP_NET_ADMIN");
  if (missing.empty()) return ok("capabilities", "this process has all that dpdk.devices need");
  return fail("capabilities", "dpdk.devices need " + missing + ", which this process lacks",
              kDropIn);
}

std::string interface_names(const host::HostFacts& facts) {
  std::string names;
  for (const auto& each : facts.interfaces) append(names, ", ", each.name);
  return names;
}

void check_interface(const std::string& device, const host::HostFacts& facts, uint32_t mtu,
                     Findings& findings) {
  const std::string owner = config::device_name(device);
  const std::string name = config::device_argument(device, "iface");
  const auto found = std::find_if(facts.interfaces.begin(), facts.interfaces.end(),
                                  [&](const host::Interface& each) { return each.name == name; });
  if (found == facts.interfaces.end()) {
    findings.add(CheckLevel::kFail,
                 owner + ": " + (name.empty() ? "no iface= is given" : "no interface " + name),
                 "give iface= one of " + interface_names(facts));
    return;
  }
  if (!found->is_up) {
    findings.add(CheckLevel::kFail, owner + ": " + name + " is down",
                 "ip link set dev " + name + " up");
  }
  if (found->mtu != 0 && found->mtu < mtu) {
    findings.add(CheckLevel::kFail,
                 owner + ": " + name + " has mtu " + std::to_string(found->mtu) +
                     ", less than data.mtu = " + std::to_string(mtu),
                 "ip link set dev " + name + " mtu " + std::to_string(mtu) + ", or lower data.mtu");
  }
  if (!found->addresses.empty()) {
    findings.add(CheckLevel::kWarn,
                 owner + ": " + name + " has " + found->addresses[0] +
                     " in the kernel too, which answers packets that are meant for DPDK",
                 "ip address flush dev " + name);
  }
}

Check check_interfaces(const config::Config& config, const host::HostFacts& facts) {
  Findings findings;
  const uint32_t mtu = config.data.mtu == 0 ? config::kDpdkMtuDefault : config.data.mtu;
  const auto devices = packet_devices(config);
  for (const auto& device : devices) check_interface(device, facts, mtu, findings);
  return findings.as(
      "interfaces",
      devices.empty()
          ? "no device uses a kernel interface"
          : "every kernel interface is up, takes data.mtu, and has no address in the kernel");
}

Check check_addresses(const config::Config& config, const host::HostFacts& facts) {
  Findings findings;
  bool leaves_host = false;
  for (const auto& device : config.dpdk.devices) {
    leaves_host = leaves_host || !config::stays_on_host(device.device);
    for (const auto& each : device.addresses) {
      const std::string address = config::without_prefix(each);
      const auto& list = facts.addresses;
      if (std::find(list.begin(), list.end(), address) == list.end()) continue;
      findings.add(CheckLevel::kWarn,
                   address + " of " + config::device_name(device.device) +
                       " is an address of a kernel interface too, so the box and the kernel both "
                       "answer for it",
                   "remove it from the kernel interface (ip address del), or give the device "
                   "another address");
    }
  }
  if (leaves_host && config::is_loopback_address(config.box.listen)) {
    findings.add(CheckLevel::kWarn,
                 "box.listen = " + config.box.listen +
                     " is loopback: workers on other hosts cannot reach the control port",
                 "set box.listen to an address of a kernel interface that workers reach");
  }
  return findings.as("addresses", "no address of dpdk.devices is an address of the kernel too");
}

}  // namespace

std::vector<Check> device_checks(const config::Config& config, const host::HostFacts& facts,
                                 const Result<topology::Topology>& topology) {
  return {check_drivers(config, facts),         check_iommu(config, facts),
          check_nodes(config, facts, topology), check_served(config, topology),
          check_capabilities(config, facts),    check_interfaces(config, facts),
          check_addresses(config, facts)};
}

}  // namespace pbox::preflight::checks
