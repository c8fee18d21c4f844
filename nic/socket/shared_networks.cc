#include "nic/socket/shared_networks.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "nic/socket/address.h"

namespace pbox::nic {
namespace {

// Largest number of networks to keep. A host with more has containers or virtual services, and its
// routing decides about the rest.
constexpr size_t kNetworksMax = 256;
constexpr uint32_t kMappedBits = 96;

LocalAddress mapped(const uint8_t* address, bool ipv6) {
  LocalAddress bytes{};
  if (ipv6) {
    std::memcpy(bytes.data(), address, bytes.size());
  } else {
    bytes[10] = bytes[11] = 0xff;
    std::memcpy(bytes.data() + kMappedBits / 8, address, 4);
  }
  return bytes;
}

bool share_prefix(const LocalAddress& a, const LocalAddress& b, uint32_t bits) {
  const uint32_t whole = bits / 8;
  if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
  const uint32_t rest = bits % 8;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

bool is_link_local(const Endpoint& endpoint) {
  return endpoint.ipv6 && endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80;
}

}  // namespace

SharedNetworks::SharedNetworks(const std::vector<InterfaceNetwork>& networks) {
  std::vector<Network> all;
  for (const InterfaceNetwork& each : networks) {
    if (is_link_local(each.own)) continue;
    all.push_back({.interface = each.interface,
                   .prefix_bits = each.prefix_bits + (each.own.ipv6 ? 0 : kMappedBits),
                   .own = mapped(each.own.address.data(), each.own.ipv6)});
  }
  for (const Network& each : all) {
    const bool is_shared = std::any_of(all.begin(), all.end(), [&](const Network& other) {
      return other.interface != each.interface &&
             share_prefix(each.own, other.own, std::min(each.prefix_bits, other.prefix_bits));
    });
    if (is_shared && networks_.size() < kNetworksMax) networks_.push_back(each);
  }
}

SharedNetworks SharedNetworks::read() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<InterfaceNetwork> networks;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage address{};
    std::memcpy(&address, entry->ifa_addr,
                family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    networks.push_back({.interface = if_nametoindex(entry->ifa_name),
                        .own = from_sockaddr(address),
                        .prefix_bits = prefix_length(*entry->ifa_netmask, family == AF_INET6)});
  }
  return SharedNetworks(networks);
}

uint32_t SharedNetworks::interface_for(const LocalAddress& own, const Endpoint& peer) const {
  if (networks_.empty()) return 0;
  const LocalAddress from = mapped(own.data(), peer.ipv6);
  const LocalAddress to = mapped(peer.address.data(), peer.ipv6);
  uint32_t interface = 0;
  for (const Network& network : networks_) {
    if (network.own == to) return 0;
    if (network.own == from && share_prefix(to, from, network.prefix_bits)) {
      interface = network.interface;
    }
  }
  return interface;
}

}  // namespace pbox::nic
