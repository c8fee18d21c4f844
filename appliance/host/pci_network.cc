#include "appliance/host/pci_network.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "appliance/host/sysfs.h"

namespace pbox::host {
namespace {

namespace files = std::filesystem;

constexpr uint32_t kNetworkClass = 0x02;

// Reads a number like "0x8086"; 0 if there is no such file.
uint32_t hex_in(const files::path& path) {
  std::ifstream file(path);
  uint32_t number = 0;
  file >> std::hex >> number;
  return file ? number : 0;
}

int node_in(const files::path& path) {
  std::ifstream file(path);
  int node = kUnknownNode;
  return file >> node && node >= 0 ? node : kUnknownNode;
}

std::string link_name(const files::path& path) {
  std::error_code error;
  return files::read_symlink(path, error).filename().string();
}

// Returns the device's first interface; empty if it has none. A virtio device has its interface one
// level further down.
std::string interface_of(const files::path& device) {
  for (const auto& name : names_in(device / "net")) return name;
  for (const auto& child : names_in(device)) {
    if (!child.starts_with("virtio")) continue;
    for (const auto& name : names_in(device / child / "net")) return name;
  }
  return {};
}

bool may_open(const files::path& path) {
  return faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) == 0;
}

}  // namespace

PciBinding binding_of(const PciNetwork& device) {
  const std::string& driver = device.driver;
  if (driver.empty()) return PciBinding::kNone;
  if (driver == "vfio-pci") return PciBinding::kVfio;
  if (driver == "uio_pci_generic" || driver == "igb_uio") return PciBinding::kUio;
  for (const char* shared : {"mlx5_core", "mlx4_core", "mana"}) {
    if (driver == shared) return PciBinding::kBifurcated;
  }
  return PciBinding::kKernel;
}

std::vector<PciNetwork> read_pci_network(const std::string& root) {
  const files::path folder = root + "/sys/bus/pci/devices";
  std::vector<PciNetwork> devices;
  for (const auto& address : names_in(folder)) {
    const files::path path = folder / address;
    if (hex_in(path / "class") >> 16 != kNetworkClass) continue;
    PciNetwork device;
    device.address = address;
    device.node = node_in(path / "numa_node");
    device.driver = link_name(path / "driver");
    device.iommu_group = link_name(path / "iommu_group");
    device.vendor = hex_in(path / "vendor");
    device.device = hex_in(path / "device");
    device.interface = interface_of(path);
    const std::string vfio = root + "/dev/vfio/";
    device.vfio_accessible =
        !device.iommu_group.empty() &&
        (may_open(vfio + device.iommu_group) || may_open(vfio + "noiommu-" + device.iommu_group));
    devices.push_back(std::move(device));
  }
  return devices;
}

VfioFacts read_vfio_facts(const std::string& root) {
  VfioFacts facts;
  facts.iommu_active = !names_in(root + "/sys/class/iommu").empty();
  std::error_code error;
  facts.is_loaded = files::exists(root + "/sys/bus/pci/drivers/vfio-pci", error);
  const std::string unsafe =
      word_in(root + "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
  facts.allows_no_iommu = unsafe == "Y" || unsafe == "1";
  return facts;
}

}  // namespace pbox::host
