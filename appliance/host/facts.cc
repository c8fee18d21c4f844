#include "appliance/host/facts.h"

#include <hwloc.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "appliance/host/kernel.h"
#include "base/cpu_set.h"

namespace pbox::host {
namespace {

struct TopologyDestroyer {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, TopologyDestroyer>;

// Loads an hwloc XML file, or this machine's topology if `path` is empty.
Result<HwlocTopology> load(const std::string& path) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return system_error("cannot initialise hwloc", errno);
  HwlocTopology topology(raw);
  if (!path.empty() && hwloc_topology_set_xml(raw, path.c_str()) != 0) {
    return system_error("cannot read hwloc XML from " + path, errno);
  }
  // sysfs has all that is needed here. The pci component leaks (libpciaccess), and the other two
  // would load a GPU's drivers into the daemon.
  for (const char* component : {"pci", "opencl", "gl"}) {
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  // hwloc drops NICs unless told to keep them.
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0) {
    const std::string what = path.empty() ? std::string("this machine") : path;
    return system_error("hwloc cannot load the topology of " + what, errno);
  }
  return topology;
}

std::vector<int> indices(hwloc_const_bitmap_t set) {
  std::vector<int> list;
  for (int index = hwloc_bitmap_first(set); index >= 0; index = hwloc_bitmap_next(set, index)) {
    list.push_back(index);
  }
  return list;
}

uint64_t number_info(hwloc_obj_t object, const char* name, uint64_t otherwise) {
  const char* text = hwloc_obj_get_info_by_name(object, name);
  if (text == nullptr) return otherwise;
  uint64_t number = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  return error == std::errc() && stop == end ? number : otherwise;
}

void read_nodes(hwloc_topology_t topology, HostFacts& facts) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
    const auto& attributes = object->attr->numanode;
    NumaNode node;
    node.node = static_cast<int>(object->os_index);
    node.memory_bytes = attributes.local_memory;
    for (unsigned i = 0; i < attributes.page_types_len; ++i) {
      const auto& pages = attributes.page_types[i];
      if (pages.size == kHugepageBytes) node.hugepages_total = pages.count;
      if (pages.size == kGiantPageBytes) node.giant_pages_total = pages.count;
    }
    node.hugepages_free = number_info(object, "PboxHugepagesFree", node.hugepages_total);
    node.giant_pages_free = node.giant_pages_total;
    facts.nodes.push_back(node);
  }
  std::sort(facts.nodes.begin(), facts.nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.node < b.node; });
}

// Lists each core with the CPUs that this process may use. Leaves out cores without any.
void read_cores(hwloc_topology_t topology, HostFacts& facts) {
  // Some virtual machines show no cores: each hardware thread then counts as one.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
    Core core;
    for (const int cpu : indices(object->cpuset)) {
      const auto& allowed = facts.allowed_cpus;
      if (std::binary_search(allowed.begin(), allowed.end(), cpu)) core.cpus.push_back(cpu);
    }
    if (core.cpus.empty()) continue;
    core.node = std::max(0, hwloc_bitmap_first(object->nodeset));
    const hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
    core.package = package == nullptr ? 0 : static_cast<int>(package->logical_index);
    facts.cores.push_back(std::move(core));
  }
  std::sort(facts.cores.begin(), facts.cores.end(),
            [](const Core& a, const Core& b) { return a.cpus[0] < b.cpus[0]; });
}

// Returns the PCI address of a PCI device; empty for any other object.
std::string pci_address_of(hwloc_obj_t object) {
  if (object == nullptr || object->type != HWLOC_OBJ_PCI_DEVICE) return {};
  const auto& pci = object->attr->pcidev;
  char text[32];
  std::snprintf(text, sizeof(text), "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain),
                static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev),
                static_cast<unsigned>(pci.func));
  return text;
}

hwloc_obj_t pci_device_of(hwloc_obj_t network) {
  hwloc_obj_t parent = network->parent;
  while (parent != nullptr && parent->type != HWLOC_OBJ_PCI_DEVICE) parent = parent->parent;
  return parent;
}

// Returns the NUMA node of a device. The node is unknown if the device is near several nodes: the
// firmware has not named one.
int node_near(hwloc_topology_t topology, hwloc_obj_t object) {
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology, object);
  if (near == nullptr || near->nodeset == nullptr) return kUnknownNode;
  return hwloc_bitmap_weight(near->nodeset) == 1 ? hwloc_bitmap_first(near->nodeset) : kUnknownNode;
}

void read_nics(hwloc_topology_t topology, HostFacts& facts) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || object->name == nullptr) continue;
    Nic nic;
    nic.name = object->name;
    nic.pci_address = pci_address_of(pci_device_of(object));
    nic.node = node_near(topology, object);
    nic.link_mbps = static_cast<uint32_t>(number_info(object, "PboxLinkMbps", 0));
    nic.mtu = static_cast<uint32_t>(number_info(object, "PboxMtu", 0));
    const char* address = hwloc_obj_get_info_by_name(object, "PboxAddress");
    if (address != nullptr) nic.addresses.push_back(address);
    facts.nics.push_back(std::move(nic));
  }
  std::sort(facts.nics.begin(), facts.nics.end(), [](const Nic& a, const Nic& b) {
    return a.pci_address != b.pci_address ? a.pci_address < b.pci_address : a.name < b.name;
  });
}

// Reads from XML what read_pci_network() reads from sysfs. To be called after read_nics().
void read_pci_devices(hwloc_topology_t topology, HostFacts& facts) {
  constexpr unsigned kNetworkClass = 0x02;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_pcidev(topology, object)) != nullptr) {
    if (object->attr->pcidev.class_id >> 8 != kNetworkClass) continue;
    PciNetwork device;
    device.address = pci_address_of(object);
    device.node = node_near(topology, object);
    const char* driver = hwloc_obj_get_info_by_name(object, "PboxDriver");
    if (driver != nullptr) device.driver = driver;
    device.vendor = object->attr->pcidev.vendor_id;
    device.device = object->attr->pcidev.device_id;
    for (const auto& nic : facts.nics) {
      if (nic.pci_address == device.address) device.interface = nic.name;
    }
    device.vfio_accessible = true;
    facts.pci_network.push_back(std::move(device));
  }
  std::sort(facts.pci_network.begin(), facts.pci_network.end(),
            [](const PciNetwork& a, const PciNetwork& b) { return a.address < b.address; });
}

// Reads from XML what read_rdma() reads from sysfs. To be called after read_nics().
void read_rdma_devices(hwloc_topology_t topology, HostFacts& facts) {
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_osdev(topology, object)) != nullptr) {
    if (object->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS || object->name == nullptr)
      continue;
    RdmaFacts device;
    device.name = object->name;
    device.node = node_near(topology, object);
    device.is_active = device.is_accessible = true;
    const std::string address = pci_address_of(pci_device_of(object));
    for (const auto& nic : facts.nics) {
      if (!address.empty() && nic.pci_address == address) device.interface = nic.name;
    }
    facts.rdma.push_back(std::move(device));
  }
  std::sort(facts.rdma.begin(), facts.rdma.end(),
            [](const RdmaFacts& a, const RdmaFacts& b) { return a.name < b.name; });
}

void read_topology(hwloc_topology_t topology, HostFacts& facts) {
  read_nodes(topology, facts);
  read_cores(topology, facts);
  read_nics(topology, facts);
}

}  // namespace

Result<HostFacts> read_host_facts() {
  auto topology = load("");
  if (!topology) return topology.error();
  const auto affinity = current_affinity();
  if (!affinity) return affinity.error();
  HostFacts facts;
  facts.source = "this machine";
  facts.allowed_cpus = affinity->cpus;
  read_topology(topology->get(), facts);
  read_kernel_facts(facts);
  return facts;
}

Result<HostFacts> load_host_facts(const std::string& path) {
  auto topology = load(path);
  if (!topology) return topology.error();
  HostFacts facts;
  facts.source = path.substr(path.rfind('/') + 1);
  facts.allowed_cpus = indices(hwloc_topology_get_allowed_cpuset(topology->get()));
  read_topology(topology->get(), facts);
  read_pci_devices(topology->get(), facts);
  read_rdma_devices(topology->get(), facts);
  for (const auto& node : facts.nodes) facts.memory_bytes += node.memory_bytes;
  const hwloc_obj_t machine = hwloc_get_root_obj(topology->get());
  const char* kernel = hwloc_obj_get_info_by_name(machine, "OSRelease");
  if (kernel != nullptr) facts.kernel = kernel;
  facts.memlock_bytes = kUnlimited;
  facts.vfio = {.iommu_active = true, .is_loaded = true};
  facts.can_force_buffers = facts.can_open_raw_sockets = facts.can_map_hugepages = true;
  for (const auto& nic : facts.nics) {
    facts.addresses.insert(facts.addresses.end(), nic.addresses.begin(), nic.addresses.end());
    facts.interfaces.push_back({nic.name, true, nic.mtu, nic.addresses});
  }
  return facts;
}

}  // namespace pbox::host
