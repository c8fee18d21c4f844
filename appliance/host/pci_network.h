// Network devices on PCI, whichever driver they have. A device that DPDK drives has no interface,
// and hwloc does not show it as a NIC. Reads sysfs. Any thread.
#pragma once

#include <string>
#include <vector>

#include "appliance/host/facts.h"

namespace pbox::host {

// Says what drives a device, as far as it matters to DPDK.
enum class PciBinding {
  kNone,        // no driver, or not known
  kVfio,        // DPDK may drive it, behind an IOMMU if there is one
  kUio,         // DPDK may drive it, as root and without an IOMMU
  kBifurcated,  // the kernel and DPDK at once, for example with mlx5_core
  kKernel       // the kernel alone
};
PciBinding binding_of(const PciNetwork& device);

// Returns every PCI function of class 0x02 below `root`/sys, ascending by address. `root` is empty
// except in tests.
std::vector<PciNetwork> read_pci_network(const std::string& root);
VfioFacts read_vfio_facts(const std::string& root);

}  // namespace pbox::host
