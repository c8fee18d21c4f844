#include <catch2/catch.hpp>

#include "appliance/host/rdma_facts.h"
#include "tests/unit/appliance/host/fake_tree.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::host::rdma_facts_test {
namespace {

const std::string kDevices = "/sys/class/infiniband/";

void add_device(FakeTree& tree, const std::string& name, const std::string& state,
                const std::string& interface) {
  tree.write(kDevices + name + "/ports/1/state", state);
  if (!interface.empty()) {
    tree.write(kDevices + name + "/ports/1/gid_attrs/ndevs/0", interface);
  }
}

}  // namespace

TEST_CASE("RDMA devices are found by name, with link, interface, node and who may open them") {
  FakeTree tree("rdma_facts_test.folder");
  add_device(tree, "rxe0", "4: ACTIVE", "eth1");
  add_device(tree, "mlx5_0", "1: DOWN", "ens1");
  tree.write(kDevices + "mlx5_0/device/numa_node", "1");
  tree.write("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
  tree.write("/sys/class/infiniband_verbs/uverbs1/ibdev", "rxe0");
  tree.write("/dev/infiniband/uverbs1", "");
  add_device(tree, "siw9", "4: ACTIVE", "");
  Nic nic;
  nic.name = "eth1";
  nic.node = 3;

  const auto devices = read_rdma(tree.root(), {nic});
  REQUIRE(devices.size() == 3);
  CHECK(devices[0].name == "mlx5_0");
  CHECK_FALSE(devices[0].is_active);
  CHECK(devices[0].node == 1);
  CHECK(devices[0].interface == "ens1");
  CHECK_FALSE(devices[0].is_accessible);
  CHECK(devices[1].name == "rxe0");
  CHECK(devices[1].is_active);
  CHECK(devices[1].node == 3);
  CHECK(devices[1].is_accessible);
  CHECK(devices[2].node == kUnknownNode);
  CHECK(devices[2].interface.empty());
}

TEST_CASE("a machine without RDMA has no RDMA devices") {
  FakeTree tree("rdma_none_test.folder");
  CHECK(read_rdma(tree.root(), {}).empty());
}

}  // namespace pbox::host::rdma_facts_test
