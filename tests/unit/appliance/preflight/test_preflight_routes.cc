#include <catch2/catch.hpp>

#include "appliance/preflight/preflight.h"
#include "tests/unit/appliance/machines.h"

namespace pbox::preflight {
namespace {

using Catch::Contains;

// Adds an interface that is up and has this address. Its ARP and its reverse path filter are set
// as a box with several NICs needs them.
host::Interface& add_interface(host::HostFacts& facts, const std::string& name,
                               const std::string& network) {
  host::Interface interface;
  interface.name = name;
  interface.is_up = true;
  interface.networks = {*nic::parse_interface_address(network)};
  interface.addresses = {to_string(interface.networks[0].address)};
  interface.arp_ignore = 1;
  facts.interfaces.push_back(interface);
  return facts.interfaces.back();
}

host::HostFacts two_nics(const std::string& second_network) {
  host::HostFacts facts = appliance::machine(1, 4);
  facts.interfaces.reserve(2);
  add_interface(facts, "eth0", "10.0.0.1/24");
  add_interface(facts, "eth1", second_network);
  return facts;
}

}  // namespace

TEST_CASE("two NICs in one network that answer ARP for each other are a warning") {
  auto facts = two_nics("10.0.0.2/24");
  CHECK(check_routes(facts, {"0.0.0.0"}).level == CheckLevel::kOk);
  facts.interfaces[0].arp_ignore = facts.interfaces[1].arp_ignore = 0;
  for (const char* used : {"0.0.0.0", "::", "10.0.0.2"}) {
    const Check check = check_routes(facts, {used});
    CHECK(check.level == CheckLevel::kWarn);
    CHECK_THAT(check.finding, Contains("eth0 and eth1 are in one network"));
    CHECK_THAT(check.remedy, Contains("arp_ignore=1") && Contains("arp_announce=2"));
  }
  CHECK(check_routes(facts, {"127.0.0.1"}).level == CheckLevel::kOk);
  facts.interfaces[1].is_up = false;
  CHECK(check_routes(facts, {"0.0.0.0"}).level == CheckLevel::kOk);
}

TEST_CASE("NICs in networks of their own, and IPv6, know no ARP of the wrong NIC") {
  auto facts = two_nics("10.0.1.2/24");
  facts.interfaces[0].arp_ignore = facts.interfaces[1].arp_ignore = 0;
  CHECK(check_routes(facts, {"0.0.0.0"}).level == CheckLevel::kOk);
  facts = two_nics("fd00::2/64");
  facts.interfaces[0].networks = {*nic::parse_interface_address("fd00::1/64")};
  facts.interfaces[0].arp_ignore = facts.interfaces[1].arp_ignore = 0;
  CHECK(check_routes(facts, {"::"}).level == CheckLevel::kOk);
}

TEST_CASE("a strict reverse path filter on one of two NICs in one network is a warning") {
  auto facts = two_nics("10.0.0.2/24");
  facts.interfaces[1].reverse_path_filter = 1;
  const Check check = check_routes(facts, {"0.0.0.0"});
  CHECK(check.level == CheckLevel::kWarn);
  CHECK_THAT(check.finding, Contains("rp_filter = 1 on eth1 drops"));
  CHECK_THAT(check.remedy, Contains("sysctl -w net.ipv4.conf.eth1.rp_filter=2"));
  facts.interfaces[1].reverse_path_filter = 2;
  CHECK(check_routes(facts, {"0.0.0.0"}).level == CheckLevel::kOk);
}

TEST_CASE("a NIC whose answers leave by another is named, and is a warning with a strict filter") {
  auto facts = two_nics("10.0.1.2/24");
  facts.source_routes = {{"10.0.0.1", "eth0"}, {"10.0.1.2", "eth0"}};
  const Check told = check_routes(facts, {"0.0.0.0"});
  CHECK(told.level == CheckLevel::kOk);
  CHECK_THAT(told.finding, Contains("from 10.0.1.2 of eth1 through eth0"));
  facts.interfaces[1].reverse_path_filter = 1;
  const Check check = check_routes(facts, {"0.0.0.0"});
  CHECK(check.level == CheckLevel::kWarn);
  CHECK_THAT(check.finding, Contains("rp_filter = 1 on eth1") && Contains("leave from 10.0.1.2"));
  CHECK_THAT(check.remedy, Contains("ip rule add from ADDRESS"));
  CHECK(check_routes(facts, {"10.0.0.1"}).finding == "each NIC answers for its own addresses");
}

TEST_CASE("preflight checks the routes of the addresses that the plan serves") {
  auto facts = two_nics("10.0.0.2/24");
  facts.interfaces[0].arp_ignore = 0;
  const auto is_warned = [&](const std::string& listen) {
    auto config = appliance::open_config();
    config.box.listen = listen;
    for (const Check& check : preflight(config, facts, {})) {
      if (check.name == "routes") return check.level == CheckLevel::kWarn;
    }
    return false;
  };
  CHECK(is_warned("0.0.0.0"));
  CHECK(is_warned("10.0.0.2"));
  CHECK_FALSE(is_warned("127.0.0.1"));
}

}  // namespace pbox::preflight
