#include <catch2/catch.hpp>
#include <cstring>

#include "tests/unit/nic/ethernet/ethernet_host.h"

namespace pbox::nic {

TEST_CASE("an interface address is printed as it was parsed") {
  for (const char* text : {"10.0.0.1/24", "192.168.1.6/31", "192.168.1.6/32", "172.16.0.255/12",
                           "fd00::1/64", "fe80::1/10", "2001:db8::/128"}) {
    INFO(text);
    const auto address = parse_interface_address(text);
    REQUIRE(address.ok());
    CHECK(to_string(*address) == text);
  }
  CHECK(to_string(kOwnMac) == "02:00:00:00:00:01");
}

TEST_CASE(
    "an address that does not belong to a single host is refused with an error that quotes it") {
  for (const char* text : {"",
                           "10.0.0.1",
                           "10.0.0.1/",
                           "10.0.0.1/33",
                           "10.0.0.1/-1",
                           "10.0.0.1/+8",
                           "10.0.0.1/24 ",
                           "10.0.0.1/24/1",
                           "10.0.0/24",
                           "box/24",
                           "10.0.0.0/24",
                           "10.0.0.255/24",
                           "0.0.0.0/0",
                           "127.0.0.1/8",
                           "224.0.0.1/4",
                           "255.255.255.255/32",
                           "fd00::1",
                           "fd00::1/129",
                           "::1/128",
                           "::/0",
                           "ff02::1/64",
                           "::ffff:10.0.0.1/96"}) {
    INFO(text);
    const auto address = parse_interface_address(text);
    REQUIRE_FALSE(address.ok());
    CHECK(address.error().message.find(std::string("'") + text + "'") != std::string::npos);
  }
}

TEST_CASE("a network contains exactly the addresses with its prefix") {
  const struct {
    const char* network;
    const char* inside;
    const char* outside;
  } cases[] = {{"10.0.0.1/24", "10.0.0.254", "10.0.1.1"},
               {"10.0.0.1/23", "10.0.1.1", "10.0.2.1"},
               {"10.0.0.1/32", "10.0.0.1", "10.0.0.2"},
               {"fd00::1/64", "fd00::ffff:0:0:1", "fd00:0:0:1::1"},
               {"fd00::1/63", "fd00:0:0:1::1", "fd00:0:0:2::1"},
               {"fd00::1/128", "fd00::1", "fd00::2"}};
  for (const auto& [network, inside, outside] : cases) {
    INFO(network);
    CHECK(parse_interface_address(network)->contains(ip(inside)));
    CHECK_FALSE(parse_interface_address(network)->contains(ip(outside)));
  }
  CHECK(parse_interface_address("10.0.0.1/0")->contains(ip("192.0.2.1")));
  CHECK_FALSE(parse_interface_address("10.0.0.1/0")->contains(ip("fd00::1")));
}

TEST_CASE("derived addresses follow their standards") {
  // RFC 4291, appendix A; RFC 4861, section 2.3; RFC 2464, section 7.
  CHECK(link_local_address({0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde}) ==
        ip("fe80::3656:78ff:fe9a:bcde"));
  CHECK(solicited_node_address(ip("4037::01:800:200e:8c6c")) == ip("ff02::1:ff0e:8c6c"));
  CHECK(multicast_mac(ip("ff02::1:ff0e:8c6c")) == MacAddress{0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c});
  CHECK(multicast_mac(all_nodes_address()) == MacAddress{0x33, 0x33, 0, 0, 0, 1});
  const Endpoint endpoint = *parse_endpoint("fd00::7", 9542);
  CHECK(endpoint_of(ip_address(endpoint), 9542) == endpoint);
}

TEST_CASE("an interface owns its given addresses and the link-local address of its MAC") {
  const Interface interface = make_interface();
  for (const char* own : {"10.0.0.1", "fd00::1", "fe80::ff:fe00:1"}) {
    CHECK(interface.is_own(ip(own), kOwnMac));
    CHECK_FALSE(interface.is_peer(ip(own), kOwnMac));
  }
  for (const char* other : {"10.0.0.2", "fd00::2", "fe80::ff:fe00:2", "a00:1::"}) {
    CHECK_FALSE(interface.is_own(ip(other), kOwnMac));
    CHECK(interface.is_peer(ip(other), kOwnMac));
  }
  CHECK(interface.is_own(ip("fe80::ff:fe00:2"), kPeerMac));
}

TEST_CASE("no peer may send from a group address or an unspecified one") {
  const Interface interface = make_interface();
  for (const char* address :
       {"10.0.0.0", "10.0.0.255", "0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "::", "::1", "::2", "::ffff:10.0.0.2", "ff02::1"}) {
    INFO(address);
    CHECK_FALSE(interface.is_peer(ip(address), kOwnMac));
    CHECK_FALSE(interface.next_hop(ip(address), kOwnMac));
  }
  // We cannot know that this is the broadcast address of another network.
  CHECK(interface.is_peer(ip("10.0.1.255"), kOwnMac));
  Interface point_to_point;
  point_to_point.addresses = {*parse_interface_address("10.0.0.1/31")};
  CHECK(point_to_point.is_peer(ip("10.0.0.0"), kOwnMac));
}

TEST_CASE(
    "packets go to the neighbour itself or to the gateway, from the address in that network") {
  Interface interface = make_interface();
  interface.addresses.push_back(*parse_interface_address("10.9.0.1/16"));
  interface.addresses.push_back(*parse_interface_address("fe80::77/64"));
  const struct {
    const char* remote;
    const char* hop;
    const char* own;
  } cases[] = {{"10.0.0.2", "10.0.0.2", "10.0.0.1"},    {"10.9.3.3", "10.9.3.3", "10.9.0.1"},
               {"192.0.2.1", "10.0.0.254", "10.0.0.1"}, {"fd00::2", "fd00::2", "fd00::1"},
               {"2001:db8::1", "fe80::fe", "fd00::1"},  {"fe80::2", "fe80::2", "fe80::77"}};
  for (const auto& [remote, hop, own] : cases) {
    INFO(remote);
    CHECK(interface.next_hop(ip(remote), kOwnMac) == ip(hop));
    CHECK(interface.local_address_for(ip(remote), kOwnMac) == ip(own));
  }
  Interface alone;
  alone.addresses = {*parse_interface_address("10.0.0.1/24")};
  CHECK_FALSE(alone.next_hop(ip("192.0.2.1"), kOwnMac));
  CHECK_FALSE(alone.local_address_for(ip("fd00::2"), kOwnMac));
  CHECK(alone.local_address_for(ip("fe80::2"), kOwnMac) == link_local_address(kOwnMac));
}

TEST_CASE("an invalid interface is refused with an error that names the problem") {
  CHECK(validate(make_interface(4094)).ok());
  const auto message = [](auto change) {
    Interface interface = make_interface();
    change(interface);
    const Status status = validate(interface);
    return status.ok() ? std::string("accepted") : status.error().message;
  };
  using Catch::Contains;
  CHECK_THAT(message([](Interface& i) { i.addresses.clear(); }), Contains("no address"));
  CHECK_THAT(message([](Interface& i) { i.addresses[0].prefix_length = 33; }),
             Contains("10.0.0.1/33"));
  CHECK_THAT(message([](Interface& i) { i.addresses[0].address = ip("10.0.0.255"); }),
             Contains("10.0.0.255/24"));
  CHECK_THAT(message([](Interface& i) { i.vlan = 4095; }), Contains("vlan is 4095"));
  CHECK_THAT(message([](Interface& i) { i.mtu = 1279; }), Contains("mtu is 1279"));
  CHECK_THAT(message([](Interface& i) { i.mtu = 65536; }), Contains("mtu is 65536"));
  CHECK_THAT(message([](Interface& i) { i.gateway4 = ip("10.0.1.254"); }), Contains("10.0.1.254"));
  CHECK_THAT(message([](Interface& i) { i.gateway4 = ip("10.0.0.1"); }), Contains("10.0.0.1"));
  CHECK_THAT(message([](Interface& i) { i.gateway4 = ip("fd00::fe"); }), Contains("family"));
  CHECK_THAT(message([](Interface& i) { i.gateway6 = ip("fd01::fe"); }), Contains("fd01::fe"));
  CHECK_THAT(message([](Interface& i) { i.gateway6 = ip("fd00::1"); }), Contains("fd00::1"));
}

}  // namespace pbox::nic
