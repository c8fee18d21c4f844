// A box on two NICs on PCI without the kernel, in a guest of tests/vm: nic0 on NUMA node 0 and nic2
// on node 1 are bound to vfio-pci, behind the guest's IOMMU. Workers are on the kernel's nic1.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/support/daemon.h"
#include "tests/support/sums.h"

namespace pbox::test {
namespace {

constexpr char kDevices[] = "--dpdk.devices=0000:41:00.0 10.9.0.11/24; 0000:81:00.0 10.9.0.13/24";

uint64_t free_hugepages(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) +
                     "/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages;
}

}  // namespace

TEST_CASE("every queue of two NICs on two NUMA nodes serves, with hugepages of its own node") {
  Daemon daemon({"--data.port=dpdk", "--data.port_first=9542", "--data.mtu=9000", kDevices,
                 "--pipeline.count=4", "--security.insecure=true",
                 "--security.insecure_off_loopback=true"});
  CHECK(free_hugepages(0) < 256);
  CHECK(free_hugepages(1) < 256);
  const SumsOutcome outcome =
      run_sums({.box = daemon.control(), .elements = {1, 353, 8193, 100003, 300000}, .rounds = 4});
  CHECK(outcome.failure == "");
  CHECK(outcome.identical);
  CHECK(outcome.pipeline_count == 4);
  CHECK(outcome.fragment_bytes == 8192);
  for (int pipeline = 0; pipeline < 4; ++pipeline) {
    INFO("pipeline " << pipeline);
    CHECK(daemon.metric("pbox_rx_packets_total", "pipeline=\"" + std::to_string(pipeline) + '"') >
          0);
  }
  CHECK(daemon.metric("pbox_port_dispatched_packets_total") == 0);
}

}  // namespace pbox::test
