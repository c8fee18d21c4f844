// Which network devices are on PCI, whoever drives them: one that DPDK drives has no interface, and
// hwloc does not show it as a NIC. Reads sysfs.
#pragma once

#include <string>
#include <vector>

#include "appliance/host/facts.h"

namespace pbox::appliance {

// Who drives a device, as far as DPDK cares.
enum class PciBinding {
  kNone,        // nobody, or nothing is known
  kVfio,        // DPDK may drive it, behind an IOMMU if there is one
  kUio,         // DPDK may drive it, as root and without an IOMMU
  kBifurcated,  // the kernel and DPDK at once: the NICs of mlx5_core and their like
  kKernel       // the kernel alone
};
PciBinding binding_of(const PciNetwork& device);

// Every function of class 0x02 below `root`/sys, ascending by address. `root` is "" but in tests.
std::vector<PciNetwork> read_pci_network(const std::string& root);
VfioFacts read_vfio_facts(const std::string& root);

}  // namespace pbox::appliance
