#include <algorithm>

#include "appliance/host/pci_network.h"
#include "appliance/topology/steps.h"
#include "config/cpu_list.h"
#include "config/dpdk_device.h"

namespace pbox::topology::steps {
namespace {

void append(std::string& list, const std::string& separator, const std::string& entry) {
  if (!list.empty()) list += separator;
  list += entry;
}

const host::PciNetwork* find_device(const host::HostFacts& facts, const std::string& address) {
  for (const auto& device : facts.pci_network) {
    if (device.address == address) return &device;
  }
  return nullptr;
}

// Returns, for example, "0000:3b:00.0 (vfio-pci), 0000:01:00.0 (virtio-pci, eth0)".
std::string known_devices(const host::HostFacts& facts) {
  std::string known;
  for (const auto& device : facts.pci_network) {
    std::string state = device.driver.empty() ? "no driver" : device.driver;
    if (!device.interface.empty()) state += ", " + device.interface;
    append(known, ", ", device.address + " (" + state + ")");
  }
  return known;
}

std::string fault_of(const host::HostFacts& facts, const std::string& address) {
  const host::PciNetwork* device = find_device(facts, address);
  if (device == nullptr) {
    const std::string known = known_devices(facts);
    return address + " is not a network device of " + facts.source + "; " +
           (known.empty() ? "it has none on PCI" : "choose among " + known);
  }
  if (host::binding_of(*device) != host::PciBinding::kKernel) return {};
  return address + " is bound to the kernel driver " + device->driver +
         "; dpdk-devbind.py --bind=vfio-pci " + address + " gives it to DPDK" +
         (device->interface.empty() ? "" : ", and interface " + device->interface + " disappears");
}

// Reports all faults at once.
Status check_devices(const config::Config& config, const host::HostFacts& facts) {
  std::string faults;
  for (const auto& device : config.dpdk.devices) {
    if (!config::is_pci_device(device.device)) continue;
    const std::string fault = fault_of(facts, device.device);
    if (!fault.empty()) append(faults, " | ", fault);
  }
  if (faults.empty()) return ok_status();
  return Error{ErrorCode::kInvalidArgument, "dpdk.devices: " + faults};
}

// Describes a group of devices as one NIC. Fails if the devices are on different NUMA nodes.
Result<host::Nic> nic_of(const config::Config& config, const host::HostFacts& facts,
                         const std::vector<uint32_t>& group) {
  const auto& devices = config.dpdk.devices;
  host::Nic nic;
  nic.addresses = {config::without_prefix(devices[group[0]].addresses[0])};
  for (const uint32_t index : group)
    append(nic.name, "+", config::device_name(devices[index].device));
  if (config.pipeline.numa == config::OnOffAuto::kOff) return nic;
  for (const uint32_t index : group) {
    const host::PciNetwork* device = find_device(facts, devices[index].device);
    if (device == nullptr) continue;
    nic.pci_address = device->address;
    if (device->node == host::kUnknownNode) continue;
    if (nic.node != host::kUnknownNode && nic.node != device->node) {
      return Error{ErrorCode::kInvalidArgument,
                   "dpdk.devices: " + nic.name + " share their addresses, but are on NUMA nodes " +
                       std::to_string(nic.node) + " and " + std::to_string(device->node) +
                       "; give each addresses of its own, or set pipeline.numa = off"};
    }
    nic.node = device->node;
  }
  return nic;
}

// The operator named these devices, so a device without a core near it is an error: none is left
// out silently.
Status check_cores_near(const std::vector<Seat>& seats, const std::vector<host::Nic>& nics) {
  const auto nodes = nodes_of(seats);
  for (const auto& nic : nics) {
    if (std::binary_search(nodes.begin(), nodes.end(), nic.node)) continue;
    return Error{ErrorCode::kInvalidArgument,
                 "dpdk.devices: " + nic.name + " is on NUMA node " + std::to_string(nic.node) +
                     ", where no core may run a pipeline; name some in pipeline.cores, widen the "
                     "process's cpuset, or set pipeline.numa = off"};
  }
  return ok_status();
}

}  // namespace

Result<std::vector<Server>> serving_devices(const config::Config& config,
                                            const host::HostFacts& facts, std::vector<Seat>& seats,
                                            Reasons& reasons) {
  if (config.dpdk.devices.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "dpdk.devices is empty, but data.port = dpdk; name at least one device"};
  }
  if (const auto status = check_devices(config, facts); !status) return status.error();
  const auto groups = config::device_groups(config.dpdk.devices);
  std::vector<host::Nic> nics;
  for (const auto& group : groups) {
    auto nic = nic_of(config, facts, group);
    if (!nic) return nic.error();
    nics.push_back(std::move(*nic));
  }
  reasons.push_back("data.port = dpdk: data bypasses the kernel; box.listen = " +
                    config.box.listen + " is the address of control connections only");
  if (config.pipeline.numa != config::OnOffAuto::kOff) {
    settle_unknown_nodes(seats, nics, reasons);
    if (const auto status = check_cores_near(seats, nics); !status) return status.error();
    const auto status = keep_seats_near(config, nics, seats, reasons);
    if (!status) return status.error();
  }
  std::vector<Server> servers;
  for (size_t i = 0; i < groups.size(); ++i) {
    servers.push_back(Server{nics[i].name, nics[i].node, nics[i].addresses[0], groups[i]});
  }
  return servers;
}

void explain_devices(const config::Config& config, const std::vector<Server>& servers,
                     const Topology& topology, Reasons& reasons) {
  for (const auto& server : servers) {
    std::vector<int> served;
    for (const auto& pipeline : topology.pipelines) {
      if (pipeline.devices == server.devices) served.push_back(static_cast<int>(pipeline.index));
    }
    if (served.empty()) continue;
    std::string reason = server.nic + (server.devices.size() == 1 ? " serves" : " serve") +
                         (served.size() == 1 ? " pipeline " : " pipelines ") +
                         config::print_cpu_list(served) + " at " + server.address;
    if (server.devices.size() > 1) reason += ", each of which has a queue on every one of them";
    reasons.push_back(std::move(reason));
  }
  reasons.push_back(
      "the queues, offloads and link speeds of the devices are not known before they are opened");
  if (config.pipeline.poll == config::PollMode::kAdaptive) {
    reasons.push_back(
        "pipeline.poll = adaptive: a DPDK device has no event to wait for, so idle pipelines sleep "
        "for short times between polls; pipeline.poll = busy has the lowest latency");
  }
}

}  // namespace pbox::topology::steps
