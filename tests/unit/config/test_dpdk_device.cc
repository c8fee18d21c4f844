#include <catch2/catch.hpp>

#include "config/dpdk_device.h"
#include "config/parse.h"

namespace pbox::config::dpdk_device_test {
namespace {

using Devices = std::vector<DpdkDevice>;

std::string only_fault(const std::string& text) {
  const auto faults = read_dpdk_devices(text).faults;
  CHECK(faults.size() == 1);
  return faults.empty() ? std::string() : faults[0];
}

}  // namespace

TEST_CASE(
    "an item is a device, its addresses, gateways and VLAN, in one form whatever was written") {
  const auto read = read_dpdk_devices(
      " 3B:00.1 10.0.0.1/24  FD00:0::1/64 gateway=10.0.0.254 gateway=fd00:0:0::fe vlan=100 ;"
      "net_memif0,role=server,socket=/run/pbox/memif.sock,id=0 10.0.1.1/24 ");
  CHECK(read.faults == std::vector<std::string>{});
  const Devices expected = {
      {"0000:3b:00.1", {"10.0.0.1/24", "fd00::1/64"}, {"10.0.0.254", "fd00::fe"}, 100},
      {"net_memif0,role=server,socket=/run/pbox/memif.sock,id=0", {"10.0.1.1/24"}, {}, 0}};
  CHECK(read.devices == expected);
  CHECK(read_dpdk_devices(print_dpdk_devices(expected)).devices == expected);
  CHECK(read_dpdk_devices("").devices == Devices{});
}

TEST_CASE("the file keeps what an item is made of, and a '#' ends it") {
  const auto outcome = parse_text(
      "[dpdk]\ndevices = net_null0,size=64,copy=1 10.0.0.1/24; net_ring0 10.0.1.1/24 # two\n"
      "[data]\nport = dpdk\n");
  CHECK(outcome.errors == std::vector<std::string>{});
  REQUIRE(outcome.config);
  const Devices expected = {{"net_null0,size=64,copy=1", {"10.0.0.1/24"}, {}, 0},
                            {"net_ring0", {"10.0.1.1/24"}, {}, 0}};
  CHECK(outcome.config->dpdk.devices == expected);
}

TEST_CASE("a fault of an item names the word and what to write in its place") {
  using Catch::Contains;
  struct Row {
    std::string text, word, remedy;
  };
  const Row rows[] = {
      {"eth0 10.0.0.1/24", "eth0 is not a device", "0000:3b:00.0"},
      {"3b:00.8 10.0.0.1/24", "3b:00.8 is not a device", "PCI address"},
      {"net_ 10.0.0.1/24", "net_ is not a device", "net_af_packet0"},
      {"net_a\"b 10.0.0.1/24", "net_a\"b is not a device", "virtual device"},
      {"net_ring0", "net_ring0: it has no address", "10.0.0.1/24"},
      {"net_ring0 10.0.0.1", "10.0.0.1 has no prefix", "10.0.0.1/24"},
      {"net_ring0 fd00::1", "fd00::1 has no prefix", "fd00::1/64"},
      {"net_ring0 10.0.0.1/33", "10.0.0.1/33 is not understood", "10.0.0.1/24"},
      {"net_ring0 10.0.0.1/24/", "10.0.0.1/24/ is not understood", "vlan=ID"},
      {"net_ring0 10.0.0.0/24", "10.0.0.0/24 cannot be", "workers can send to"},
      {"net_ring0 10.0.0.255/24", "10.0.0.255/24 cannot be", "workers can send to"},
      {"net_ring0 224.0.0.1/24", "224.0.0.1/24 cannot be", "workers can send to"},
      {"net_ring0 127.0.0.1/8", "127.0.0.1/8 cannot be", "workers can send to"},
      {"net_ring0 fe80::1/64", "fe80::1/64 cannot be", "fd00::1/64"},
      {"net_ring0 ::ffff:10.0.0.1/120", "cannot be", "10.0.0.1/24"},
      {"net_ring0 fd00::1/64 fd00:0::1/48", "fd00:0::1/48 is given twice", "keep one"},
      {"net_ring0 10.0.0.1/24 gateway=router", "gateway=router is not an address", "10.0.0.254"},
      {"net_ring0 10.0.0.1/24 gateway=10.0.1.9", "gateway=10.0.1.9 is in no network", "give one"},
      {"net_ring0 10.0.0.1/24 gateway=fd00::9", "gateway=fd00::9 is in no network", "give one"},
      {"net_ring0 10.0.0.1/24 gateway=10.0.0.1", "gateway=10.0.0.1 is the device's own", "router"},
      {"net_ring0 10.0.0.1/24 gateway=10.0.0.2 gateway=10.0.0.3", "gateway=10.0.0.3 is a second",
       "keep one"},
      {"net_ring0 10.0.0.1/24 vlan=0", "vlan=0 is not accepted", "vlan=1 to vlan=4094"},
      {"net_ring0 10.0.0.1/24 vlan=4095", "vlan=4095 is not accepted", "vlan=1 to vlan=4094"},
      {"net_ring0 10.0.0.1/24 vlan=1 vlan=2", "vlan=2 is a second", "keep one"},
      {"net_ring0 10.0.0.1/24;", "an item is empty", "remove a ';'"}};
  for (const auto& row : rows) {
    CAPTURE(row.text);
    CHECK_THAT(only_fault(row.text), Contains(row.word) && Contains(row.remedy));
  }
}

TEST_CASE("every fault of every item is an error, and none follows from another") {
  const auto outcome = parse_text(
      "[data]\nport = dpdk\n[dpdk]\ndevices = eth0 10.0.0.1; net_ring0 10.0.1.1/24 vlan=9999\n");
  CHECK(outcome.errors.size() == 3);
  for (const auto& error : outcome.errors) {
    CHECK_THAT(error, Catch::StartsWith("text: dpdk.devices: "));
  }
}

TEST_CASE("devices of exactly the same addresses serve together") {
  const auto read = read_dpdk_devices(
      "net_memif0 10.0.0.1/24 fd00::1/64; net_ring0 10.0.1.1/24; net_memif1 fd00::1/64 10.0.0.1/24;"
      "net_memif2 10.0.0.1/24");
  CHECK(read.faults == std::vector<std::string>{});
  const std::vector<std::vector<uint32_t>> expected = {{0, 2}, {1}, {3}};
  CHECK(device_groups(read.devices) == expected);
}

TEST_CASE("a device's own words say its name, its kind and its arguments") {
  const std::string memif = "net_memif12,role=server,socket=/run/a.sock,id=0";
  CHECK(device_name(memif) == "net_memif12");
  CHECK(device_name("0000:3b:00.0") == "0000:3b:00.0");
  CHECK(is_device_kind(memif, "net_memif"));
  CHECK_FALSE(is_device_kind("net_memifx0", "net_memif"));
  CHECK(device_argument(memif, "socket") == "/run/a.sock");
  CHECK(device_argument(memif, "sock").empty());
  CHECK(is_pci_device("0000:3b:00.0"));
  CHECK_FALSE(is_pci_device(memif));
  CHECK(without_prefix("fd00::1/64") == "fd00::1");
}

}  // namespace pbox::config::dpdk_device_test
