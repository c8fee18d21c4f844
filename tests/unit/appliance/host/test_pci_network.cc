#include <catch2/catch.hpp>

#include "appliance/host/pci_network.h"
#include "tests/unit/appliance/host/fake_tree.h"

namespace pbox::host::pci_network_test {
namespace {

const std::string kDevices = "/sys/bus/pci/devices/";

void add_device(FakeTree& tree, const std::string& address, const std::string& device_class,
                int node, const std::string& driver) {
  const std::string folder = kDevices + address;
  tree.write(folder + "/class", device_class);
  tree.write(folder + "/vendor", "0x15b3");
  tree.write(folder + "/device", "0x1017");
  tree.write(folder + "/numa_node", std::to_string(node));
  if (!driver.empty()) tree.link(folder + "/driver", "../../drivers/" + driver);
}

PciNetwork driven_by(const std::string& driver) {
  PciNetwork device;
  device.driver = driver;
  return device;
}

}  // namespace

TEST_CASE("network devices on PCI are found with and without an interface, ascending") {
  FakeTree tree("pci_network_test.folder");
  add_device(tree, "0000:86:00.0", "0x020000", 1, "vfio-pci");
  tree.link(kDevices + "0000:86:00.0/iommu_group", "../../../kernel/iommu_groups/17");
  tree.write("/dev/vfio/17", "");
  add_device(tree, "0000:3b:00.0", "0x020700", -1, "mlx5_core");
  tree.write(kDevices + "0000:3b:00.0/net/ens1/mtu", "1500");
  add_device(tree, "0000:01:00.0", "0x020000", 0, "virtio-pci");
  tree.write(kDevices + "0000:01:00.0/virtio2/net/eth0/mtu", "1500");
  add_device(tree, "0000:02:00.0", "0x010802", 0, "nvme");
  add_device(tree, "0000:03:00.0", "0x028000", 0, "");

  const auto devices = read_pci_network(tree.root());
  REQUIRE(devices.size() == 4);
  CHECK(devices[0].address == "0000:01:00.0");
  CHECK(devices[0].interface == "eth0");
  CHECK(devices[1].address == "0000:03:00.0");
  CHECK(devices[1].driver.empty());
  CHECK(devices[1].iommu_group.empty());
  CHECK_FALSE(devices[1].vfio_accessible);
  CHECK(devices[2].address == "0000:3b:00.0");
  CHECK(devices[2].node == kUnknownNode);
  CHECK(devices[2].interface == "ens1");
  CHECK(devices[3].driver == "vfio-pci");
  CHECK(devices[3].node == 1);
  CHECK(devices[3].iommu_group == "17");
  CHECK(devices[3].vfio_accessible);
  CHECK(devices[3].interface.empty());
  CHECK(devices[3].vendor == 0x15b3);
  CHECK(devices[3].device == 0x1017);
}

TEST_CASE("a group whose file this process may not open is said to be closed") {
  FakeTree tree("pci_network_closed_test.folder");
  add_device(tree, "0000:86:00.0", "0x020000", 1, "vfio-pci");
  tree.link(kDevices + "0000:86:00.0/iommu_group", "../../../kernel/iommu_groups/17");
  CHECK_FALSE(read_pci_network(tree.root())[0].vfio_accessible);
  tree.write("/dev/vfio/noiommu-17", "");
  CHECK(read_pci_network(tree.root())[0].vfio_accessible);
}

TEST_CASE("a machine without PCI has no devices, and none of the means to drive them") {
  FakeTree tree("pci_network_none_test.folder");
  CHECK(read_pci_network(tree.root()).empty());
  const auto facts = read_vfio_facts(tree.root());
  CHECK_FALSE(facts.iommu_active);
  CHECK_FALSE(facts.is_loaded);
  CHECK_FALSE(facts.allows_no_iommu);
}

TEST_CASE("an IOMMU, the driver and the mode without an IOMMU are each found by themselves") {
  FakeTree tree("vfio_facts_test.folder");
  tree.write("/sys/class/iommu/dmar0/name", "");
  CHECK(read_vfio_facts(tree.root()).iommu_active);
  CHECK_FALSE(read_vfio_facts(tree.root()).is_loaded);
  tree.write("/sys/bus/pci/drivers/vfio-pci/bind", "");
  CHECK(read_vfio_facts(tree.root()).is_loaded);
  const std::string mode = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
  tree.write(mode, "N");
  CHECK_FALSE(read_vfio_facts(tree.root()).allows_no_iommu);
  tree.write(mode, "Y");
  CHECK(read_vfio_facts(tree.root()).allows_no_iommu);
}

TEST_CASE("the driver of a device decides whether DPDK may use it") {
  CHECK(binding_of(driven_by("")) == PciBinding::kNone);
  CHECK(binding_of(driven_by("vfio-pci")) == PciBinding::kVfio);
  CHECK(binding_of(driven_by("uio_pci_generic")) == PciBinding::kUio);
  CHECK(binding_of(driven_by("igb_uio")) == PciBinding::kUio);
  CHECK(binding_of(driven_by("mlx5_core")) == PciBinding::kBifurcated);
  CHECK(binding_of(driven_by("ixgbe")) == PciBinding::kKernel);
}

}  // namespace pbox::host::pci_network_test
