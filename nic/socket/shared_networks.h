// Networks that several interfaces of this host share, as NICs on one switch do. The kernel's
// routing then sends all packets through one of these interfaces, whatever their source address. A
// port instead sends a packet through the interface that has the packet's source address.
#pragma once

#include <cstdint>
#include <vector>

#include "nic/endpoint.h"

namespace pbox::nic {

// An address of this host, and the network that its interface reaches directly.
struct InterfaceNetwork {
  uint32_t interface = 0;  // index
  Endpoint own;            // the port is irrelevant
  uint32_t prefix_bits = 0;
};

class SharedNetworks {
 public:
  SharedNetworks() = default;
  // Keeps those of `networks` that overlap with the network of another interface. Link-local
  // networks are left out: an Endpoint names their interface.
  explicit SharedNetworks(const std::vector<InterfaceNetwork>& networks);
  // Reads the networks of this host's interfaces, except loopback. Later changes are not seen.
  static SharedNetworks read();

  bool empty() const { return networks_.empty(); }
  // Returns the index of the interface through which packets from `own` to `peer` must leave; 0 if
  // routing must decide: `peer` is not in the network of `own`, that network is not shared, or
  // `peer` is this host. Linear in the number of shared networks; no allocation; any thread.
  uint32_t interface_for(const LocalAddress& own, const Endpoint& peer) const;

 private:
  // IPv4 addresses are kept mapped to IPv6 (RFC 4291, section 2.5.5.2), as sockets that serve both
  // families report them.
  struct Network {
    uint32_t interface = 0;
    uint32_t prefix_bits = 0;
    LocalAddress own{};
  };

  std::vector<Network> networks_;
};

}  // namespace pbox::nic
