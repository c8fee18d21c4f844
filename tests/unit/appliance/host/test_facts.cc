#include <algorithm>
#include <catch2/catch.hpp>

#include "appliance/host/facts.h"
#include "base/cpu_set.h"

namespace pbox::host {
namespace {

const std::string kFolder = PBOX_GOLDEN_FOLDER;

}  // namespace

TEST_CASE("facts of a machine in XML keep its nodes, cores, NICs and what was annotated") {
  const auto facts = load_host_facts(kFolder + "/pbox-2x14-10nic.xml");
  REQUIRE(facts);
  CHECK(facts->source == "pbox-2x14-10nic.xml");
  CHECK_FALSE(facts->is_live);
  REQUIRE(facts->nodes.size() == 2);
  CHECK(facts->nodes[1].memory_bytes == 64ull << 30);
  CHECK(facts->nodes[1].hugepages_free == 16'384);
  REQUIRE(facts->cores.size() == 28);
  CHECK(facts->cores[14].cpus == std::vector<int>{14, 42});
  CHECK(facts->cores[14].node == 1);
  CHECK(facts->cores[14].package == 1);
  REQUIRE(facts->nics.size() == 10);
  const Nic& nic = facts->nics[9];
  CHECK(nic.name == "enp134s0");
  CHECK(nic.pci_address == "0000:86:00.0");
  CHECK(nic.node == 1);
  CHECK(nic.link_mbps == 56'000);
  CHECK(nic.mtu == 9'000);
  CHECK(nic.addresses == std::vector<std::string>{"10.0.9.1"});
  REQUIRE(facts->pci_network.size() == 10);
  const PciNetwork& device = facts->pci_network[9];
  CHECK(device.address == "0000:86:00.0");
  CHECK(device.node == 1);
  CHECK(device.vendor == 0x15b3);
  CHECK(device.device == 0x1003);
  CHECK(device.interface == "enp134s0");
  CHECK(facts->allowed_cpus.size() == 56);
  CHECK(facts->kernel == "6.1.0");
}

TEST_CASE("a NIC at the machine's root has no node when there are several") {
  const auto facts = load_host_facts(kFolder + "/2x3-nic-without-node.xml");
  REQUIRE(facts);
  REQUIRE(facts->nics.size() == 1);
  CHECK(facts->nics[0].node == kUnknownNode);
}

TEST_CASE("a file that is missing or no hwloc XML is an error that names it") {
  for (const auto& name : {"/no-such.xml", "/pbox-2x14-10nic.conf"}) {
    const auto facts = load_host_facts(kFolder + name);
    REQUIRE_FALSE(facts);
    CHECK_THAT(facts.error().message, Catch::Contains(kFolder + name));
  }
}

TEST_CASE("facts of this machine agree with what the kernel says elsewhere") {
  const auto facts = read_host_facts();
  REQUIRE(facts);
  CHECK(facts->is_live);
  CHECK(facts->allowed_cpus == current_affinity()->cpus);
  REQUIRE_FALSE(facts->cores.empty());
  size_t cpu_count = 0;
  for (const auto& core : facts->cores) cpu_count += core.cpus.size();
  CHECK(cpu_count == facts->allowed_cpus.size());
  REQUIRE_FALSE(facts->nodes.empty());
  CHECK(facts->memory_bytes > 0);
  CHECK_FALSE(facts->kernel.empty());
  const auto& addresses = facts->addresses;
  CHECK(std::find(addresses.begin(), addresses.end(), "127.0.0.1") != addresses.end());
  const auto& interfaces = facts->interfaces;
  const auto loopback = std::find_if(interfaces.begin(), interfaces.end(),
                                     [](const Interface& each) { return each.name == "lo"; });
  REQUIRE(loopback != interfaces.end());
  CHECK(loopback->is_up);
  CHECK(loopback->mtu == 65'536);
  CHECK(std::count(loopback->addresses.begin(), loopback->addresses.end(), "127.0.0.1") == 1);
  for (const auto& nic : facts->nics) {
    if (nic.pci_address.empty()) continue;
    const auto& devices = facts->pci_network;
    CHECK(std::any_of(devices.begin(), devices.end(), [&](const PciNetwork& each) {
      return each.address == nic.pci_address && !each.interface.empty();
    }));
  }
}

}  // namespace pbox::host
