// Finding a device, and saying why it cannot be had.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "nic/dpdk/device_arguments.h"

namespace pbox::nic {

// DPDK's number of the device; a virtual one is made, and a PCI one that was given back is taken
// again. Frees what a process that crashed left behind
// (memif's socket), and refuses what another process serves. Control thread; DPDK must run.
Result<uint16_t> find_device(const DeviceArguments& device);

// Why DPDK does not know a PCI device, from what the kernel says of it. `sysfs`: "/sys".
std::string explain_missing(const std::string& pci_address, const std::string& sysfs);

// Whether an interface of the kernel is up and has a carrier. Control thread.
bool interface_is_running(const std::string& interface);

}  // namespace pbox::nic
