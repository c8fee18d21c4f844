#include <catch2/catch.hpp>

#include "nic/socket/shared_networks.h"

namespace pbox::nic {
namespace {

InterfaceNetwork network(uint32_t interface, const std::string& address, uint32_t prefix_bits) {
  return {.interface = interface, .own = *parse_endpoint(address, 0), .prefix_bits = prefix_bits};
}

uint32_t chosen(const SharedNetworks& networks, const std::string& own, const std::string& peer) {
  return networks.interface_for(parse_endpoint(own, 0)->address, *parse_endpoint(peer, 9542));
}

}  // namespace

TEST_CASE("packets leave by the one of two interfaces in a network that has their address") {
  const SharedNetworks networks({network(2, "10.0.0.1", 24), network(3, "10.0.0.2", 24),
                                 network(3, "10.0.0.3", 24), network(2, "fd00::1", 64),
                                 network(3, "fd00::2", 64)});
  CHECK(chosen(networks, "10.0.0.1", "10.0.0.9") == 2);
  CHECK(chosen(networks, "10.0.0.2", "10.0.0.9") == 3);
  CHECK(chosen(networks, "10.0.0.3", "10.0.0.9") == 3);
  CHECK(chosen(networks, "fd00::1", "fd00::9") == 2);
  CHECK(chosen(networks, "fd00::2", "fd00::9") == 3);
  // as a socket for both families reports IPv4
  CHECK(chosen(networks, "::ffff:10.0.0.2", "::ffff:10.0.0.9") == 3);
}

TEST_CASE("routing decides for a peer beyond a router, for this host and for unknown addresses") {
  const SharedNetworks networks({network(2, "10.0.0.1", 24), network(3, "10.0.0.2", 24)});
  CHECK(chosen(networks, "10.0.0.2", "10.0.1.9") == 0);
  CHECK(chosen(networks, "10.0.0.2", "10.0.0.1") == 0);
  CHECK(chosen(networks, "10.0.0.2", "10.0.0.2") == 0);
  CHECK(chosen(networks, "10.0.0.7", "10.0.0.9") == 0);
}

TEST_CASE("a network that only one interface has is left to routing") {
  CHECK(SharedNetworks({network(2, "10.0.0.1", 24), network(2, "10.0.0.2", 24),
                        network(3, "10.0.1.1", 24), network(4, "fd00::1", 64)})
            .empty());
  // a wide network that contains a narrow one, and prefixes that end within a byte
  CHECK(chosen(SharedNetworks({network(2, "10.0.0.1", 8), network(3, "10.1.0.1", 16)}), "10.1.0.1",
               "10.1.2.3") == 3);
  CHECK(SharedNetworks({network(2, "10.0.0.1", 30), network(3, "10.0.0.5", 30)}).empty());
  CHECK_FALSE(SharedNetworks({network(2, "10.0.0.1", 29), network(3, "10.0.0.5", 30)}).empty());
  // Each interface has a link-local network. An endpoint names the interface.
  CHECK(SharedNetworks({network(2, "fe80::1", 64), network(3, "fe80::2", 64)}).empty());
}

TEST_CASE("the networks of this host are read without loopback") {
  CHECK(chosen(SharedNetworks::read(), "127.0.0.1", "127.0.0.2") == 0);
}

}  // namespace pbox::nic
