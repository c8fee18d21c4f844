// Finding a DPDK device, and explaining why it is unavailable.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "nic/dpdk/device_arguments.h"

namespace pbox::nic {

// Returns DPDK's port number of the device. Creates a virtual device; opens a PCI device again if
// it was released. Removes the memif socket of a crashed process, and fails if another process
// serves it. DPDK must have been started. Control thread.
Result<uint16_t> find_device(const DeviceArguments& device);

// Returns why DPDK has no such PCI device and what to do, according to the kernel. `sysfs` is the
// root of sysfs, "/sys" outside of tests.
std::string explain_missing(const std::string& pci_address, const std::string& sysfs);

// Returns whether a kernel interface is up and has a carrier. Control thread.
bool interface_is_running(const std::string& interface);

}  // namespace pbox::nic
