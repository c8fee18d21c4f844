#include <catch2/catch.hpp>

#include "worker/dpdk/port_settings.h"

namespace pbox::worker {
namespace {

using Catch::Contains;

std::string refusal(const std::string& text) {
  const auto settings = parse_dpdk_port(text);
  return settings ? "accepted" : settings.error().message;
}

}  // namespace

TEST_CASE("a port's words give device, networks and memory") {
  const auto settings = parse_dpdk_port(
      "  net_memif0,socket=/run/a.sock,id=0  10.0.0.7/24 fd00::7/64\tgateway=10.0.0.254 vlan=100 "
      "mtu=9000 no_huge memory_mib=256");
  REQUIRE(settings);
  CHECK(settings->device == "net_memif0,socket=/run/a.sock,id=0");
  REQUIRE(settings->interface.addresses.size() == 2);
  CHECK(to_string(settings->interface.addresses[0]) == "10.0.0.7/24");
  CHECK(to_string(settings->interface.addresses[1]) == "fd00::7/64");
  CHECK(to_string(*settings->interface.gateway4) == "10.0.0.254");
  CHECK(settings->interface.vlan == 100);
  CHECK(settings->interface.mtu == 9000);
  const nic::EalOptions eal = settings->eal();
  CHECK(eal.pci_addresses.empty());
  CHECK(eal.no_huge);
  CHECK(eal.memory_mib == std::vector<uint32_t>{256});
}

TEST_CASE("a NIC is named by its PCI address, with memory as needed") {
  const auto settings = parse_dpdk_port("0000:3b:00.0 10.0.0.7/24");
  REQUIRE(settings);
  CHECK(settings->interface.mtu == 1500);
  const nic::EalOptions eal = settings->eal();
  CHECK(eal.pci_addresses == std::vector<std::string>{"0000:3b:00.0"});
  CHECK_FALSE(eal.no_huge);
  CHECK(eal.memory_mib.empty());
}

TEST_CASE("without hugepages memory is reserved by default") {
  CHECK(parse_dpdk_port("net_null0 10.0.0.7/24 no_huge")->eal().memory_mib ==
        std::vector<uint32_t>{kNoHugeMemoryMib});
}

TEST_CASE("unknown words are refused by name, with the words that are allowed") {
  CHECK_THAT(refusal(" "), Contains("no device") && Contains("dpdk:DEVICE ADDRESS/PREFIX"));
  CHECK_THAT(refusal("net_null0"), Contains("no address") && Contains("10.0.0.1/24"));
  CHECK_THAT(refusal("net_null0 10.0.0.7"), Contains("'10.0.0.7'") && Contains("ADDRESS/PREFIX"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 huge"), Contains("'huge'") && Contains("no_huge"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 mtu=9217"),
             Contains("'mtu=9217'") && Contains("1280 to 9216"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 mtu=9k"), Contains("'mtu=9k'"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 vlan=0"), Contains("1 to 4094"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 memory_mib=-1"), Contains("'memory_mib=-1'"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 gateway=router"), Contains("'gateway=router'"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 gateway=10.0.0.1 gateway=10.0.0.2"),
             Contains("'gateway=10.0.0.2'") && Contains("second"));
  CHECK_THAT(refusal("net_null0 10.0.0.7/24 gateway=10.1.0.1"), Contains("gateway 10.1.0.1"));
}

}  // namespace pbox::worker
