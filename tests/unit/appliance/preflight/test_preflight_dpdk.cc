#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/preflight/preflight.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::preflight::preflight_dpdk_test {
namespace {

using Catch::Contains;

// A machine where every check passes for one NIC and one af_packet device.
host::HostFacts ready_machine() {
  auto facts = appliance::machine(1, 4);
  facts.nodes[0].hugepages_total = facts.nodes[0].hugepages_free = 1'024;
  facts.can_map_hugepages = facts.can_open_raw_sockets = facts.can_force_buffers = true;
  facts.vfio = {.iommu_active = true, .is_loaded = true, .allows_no_iommu = false};
  facts.addresses = {"192.0.2.1"};
  appliance::add_pci(facts, 0);
  facts.interfaces.push_back({"eth1", true, 9'000, {}});
  return facts;
}

config::Config ready_config() {
  auto config = appliance::dpdk_config(
      "0000:00:00.0 10.0.0.1/24; net_af_packet0,iface=eth1,qpairs=2 10.0.1.1/24");
  config.box.listen = "192.0.2.1";
  return config;
}

Check check_of(const config::Config& config, const host::HostFacts& facts,
               const std::string& name) {
  const auto checks = preflight(config, facts, {});
  const auto found = std::find_if(checks.begin(), checks.end(),
                                  [&](const Check& check) { return check.name == name; });
  REQUIRE(found != checks.end());
  CHECK((found->level == CheckLevel::kOk) == found->remedy.empty());
  return *found;
}

// Returns the check `name` after `change` to the machine where every check passes.
template <typename Change>
Check after(const std::string& name, Change change) {
  auto facts = ready_machine();
  change(facts);
  return check_of(ready_config(), facts, name);
}

}  // namespace

TEST_CASE("with dpdk a machine that is ready has no finding but that there are no keys") {
  const auto checks = preflight(ready_config(), ready_machine(), {});
  for (const auto& check : checks) {
    CAPTURE(check.name, check.finding);
    CHECK((check.level == CheckLevel::kOk) == (check.name != "security"));
    CHECK(check.name != "receive-buffer");
  }
  CHECK(may_start(checks).ok());
}

TEST_CASE("devices within the host need no keys, no IOMMU and no locked memory") {
  auto config = appliance::dpdk_config("net_memif0,id=0 10.0.0.1/24");
  config.dpdk.no_huge = true;
  auto facts = appliance::machine(1, 2);
  facts.memlock_bytes = 64u << 10;
  for (const auto& check : preflight(config, facts, {})) {
    CAPTURE(check.name, check.finding);
    CHECK(check.level == CheckLevel::kOk);
  }
}

TEST_CASE("a device without a driver fails, and the remedy binds it") {
  const auto failed = after("devices", [](host::HostFacts& facts) {
    facts.pci_network[0].driver.clear();
    facts.vfio.is_loaded = false;
  });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.remedy,
             Contains("modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci 0000:00:00.0"));
}

TEST_CASE("a group that this process may not open fails and is named") {
  const auto failed = after(
      "devices", [](host::HostFacts& facts) { facts.pci_network[0].vfio_accessible = false; });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Contains("/dev/vfio/10"));
  CHECK_THAT(failed.remedy, Contains("60-pbox-vfio.rules"));
}

TEST_CASE("a device that the kernel drives fails the plan, and uio is a warning") {
  const auto failed =
      after("topology", [](host::HostFacts& facts) { facts.pci_network[0].driver = "ixgbe"; });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Contains("dpdk-devbind.py"));
  const auto warned =
      after("devices", [](host::HostFacts& facts) { facts.pci_network[0].driver = "igb_uio"; });
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Contains("can write to all memory"));
}

TEST_CASE("without an IOMMU the remedies and what each costs are named") {
  const auto failed =
      after("iommu", [](host::HostFacts& facts) { facts.vfio.iommu_active = false; });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.remedy, Contains("intel_iommu=on iommu=pt") &&
                                Contains("enable_unsafe_noiommu_mode") &&
                                Contains("write to all memory"));
  const auto warned = after("iommu", [](host::HostFacts& facts) {
    facts.vfio.iommu_active = false;
    facts.vfio.allows_no_iommu = true;
  });
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Contains("CAP_SYS_RAWIO"));
  const auto unneeded = after("iommu", [](host::HostFacts& facts) {
    facts.vfio.iommu_active = false;
    facts.pci_network[0].driver = "mlx5_core";
  });
  CHECK(unneeded.level == CheckLevel::kOk);
}

TEST_CASE("too few hugepages fail with node, number of pages and the service that reserves them") {
  const auto failed = after("packet-memory", [](host::HostFacts& facts) {
    facts.nodes[0].hugepages_free = 1;
    facts.nodes[0].hugepages_total = 9;
  });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Contains("node 0 has 2 MiB in free hugepages"));
  // Two pipelines, one on each device: 64 MiB and two queues are 42 pages. One of the 9 pages is
  // free, so 50 are needed.
  CHECK_THAT(failed.remedy, Contains("pbox-hugepages.service") && Contains("echo 50 > ") &&
                                Contains("node0/hugepages/hugepages-2048kB/nr_hugepages") &&
                                Contains("dpdk.no_huge = true"));
  CHECK(after("packet-memory", [](host::HostFacts& facts) {
          facts.nodes[0].hugepages_free = 0;
          facts.nodes[0].giant_pages_free = facts.nodes[0].giant_pages_total = 1;
        }).level == CheckLevel::kOk);
}

TEST_CASE("pages that are free but not for this process fail") {
  const auto failed =
      after("packet-memory", [](host::HostFacts& facts) { facts.can_map_hugepages = false; });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.remedy, Contains("hugetlb.2MB.max"));
}

TEST_CASE("ordinary pages under a NIC are a warning") {
  auto config = ready_config();
  config.dpdk.no_huge = true;
  CHECK(check_of(config, appliance::machine(1, 4), "topology").level == CheckLevel::kFail);
  CHECK(check_of(config, ready_machine(), "packet-memory").level == CheckLevel::kWarn);
}

TEST_CASE("memory for a NIC must be lockable") {
  const auto small = [](host::HostFacts& facts) { facts.memlock_bytes = 8u << 20; };
  const auto failed = after("memlock", small);
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.remedy, Contains("LimitMEMLOCK=infinity"));
  CHECK(after("memlock", [&](host::HostFacts& facts) {
          small(facts);
          facts.can_lock_memory = true;
        }).level == CheckLevel::kOk);
  CHECK(after("memlock", [](host::HostFacts& facts) { facts.memlock_bytes = 1u << 30; }).level ==
        CheckLevel::kOk);
}

TEST_CASE("pipelines far from their NIC are a warning, which only pipeline.numa = off allows") {
  auto facts = ready_machine();
  facts.pci_network[0].node = 1;
  facts.nodes.push_back(host::NumaNode{1, appliance::kNodeBytes, 0, 0});
  auto config = ready_config();
  config.pipeline.numa = config::OnOffAuto::kOff;
  const auto warned = check_of(config, facts, "nodes");
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Contains("pipelines 0 are on another NUMA node"));
}

TEST_CASE("a device that gets no pipeline is a warning that names it") {
  auto config = ready_config();
  config.pipeline.count = 1;
  const auto warned = check_of(config, ready_machine(), "served");
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Contains("packets that arrive there: net_af_packet0"));
}

TEST_CASE("capabilities are asked for by the devices that need them") {
  const auto failed = after("capabilities", [](host::HostFacts& facts) {
    facts.can_open_raw_sockets = facts.can_force_buffers = false;
  });
  CHECK(failed.level == CheckLevel::kFail);
  CHECK_THAT(failed.finding, Contains("CAP_NET_RAW, CAP_NET_ADMIN"));
  CHECK_THAT(failed.remedy, Contains("pboxd-dpdk.conf"));
  auto facts = ready_machine();
  facts.can_open_raw_sockets = facts.can_force_buffers = false;
  CHECK(check_of(appliance::dpdk_config("0000:00:00.0 10.0.0.1/24"), facts, "capabilities").level ==
        CheckLevel::kOk);
}

TEST_CASE("an af_packet device needs an interface that is there, up, wide and without addresses") {
  const auto missing =
      after("interfaces", [](host::HostFacts& facts) { facts.interfaces[0].name = "eth7"; });
  CHECK(missing.level == CheckLevel::kFail);
  CHECK_THAT(missing.finding, Contains("net_af_packet0: no interface eth1"));
  CHECK_THAT(missing.remedy, Contains("one of eth7"));
  const auto narrow = after("interfaces", [](host::HostFacts& facts) {
    facts.interfaces[0].is_up = false;
    facts.interfaces[0].mtu = 1'400;
  });
  CHECK(narrow.level == CheckLevel::kFail);
  CHECK_THAT(narrow.finding,
             Contains("eth1 is down") && Contains("mtu 1400") && Contains("data.mtu = 1500"));
  CHECK_THAT(narrow.remedy, Contains("ip link set dev eth1 mtu 1500"));
  const auto shared = after(
      "interfaces", [](host::HostFacts& facts) { facts.interfaces[0].addresses = {"10.9.9.9"}; });
  CHECK(shared.level == CheckLevel::kWarn);
  CHECK_THAT(shared.finding, Contains("10.9.9.9"));
  auto config = appliance::dpdk_config("net_af_packet0 10.0.1.1/24");
  CHECK_THAT(check_of(config, ready_machine(), "interfaces").finding, Contains("no iface="));
}

TEST_CASE("an address that the kernel has too, and control on loopback, are warnings") {
  const auto warned =
      after("addresses", [](host::HostFacts& facts) { facts.addresses.push_back("10.0.1.1"); });
  CHECK(warned.level == CheckLevel::kWarn);
  CHECK_THAT(warned.finding, Contains("10.0.1.1 of net_af_packet0"));
  auto config = ready_config();
  config.box.listen = "127.0.0.1";
  CHECK_THAT(check_of(config, ready_machine(), "addresses").finding,
             Contains("box.listen = 127.0.0.1 is loopback"));
}

TEST_CASE("with dpdk no data port of the kernel is probed") {
  auto config = ready_config();
  config.box.listen = "127.0.0.1";
  config.control.port = config.admin.port = 0;
  CHECK(probe_ports(config, 3).empty());
}

}  // namespace pbox::preflight::preflight_dpdk_test
