#include "nic/ethernet/interface.h"

namespace pbox::nic {
namespace {

constexpr uint16_t kVlanMax = 4094;
constexpr uint32_t kMtuMin = ipv6::kMtuMin;
constexpr uint32_t kMtuMax = 65535;

Error refuse(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "interface: " + why};
}

// Returns what is wrong with the gateway; an empty text if nothing is.
std::string gateway_fault(const Interface& interface, const std::optional<IpAddress>& gateway,
                          bool ipv6) {
  if (!gateway) return {};
  const std::string name = "gateway " + to_string(*gateway);
  if (gateway->ipv6 != ipv6)
    return name + " belongs to the other address family; swap the IPv4 and the IPv6 gateway";
  // No MAC is known yet, so our own link-local address is not recognised here.
  if (!interface.is_peer(*gateway, MacAddress{})) {
    return name + " cannot be the address of another host; give the router's address";
  }
  if (!interface.is_on_link(*gateway)) {
    return name + " is in none of the interface's networks; correct the gateway or a prefix length";
  }
  return {};
}

}  // namespace

bool Interface::is_own(const IpAddress& address, const MacAddress& own_mac) const {
  return address.ipv6 ? is_own_ipv6(address.bytes.data(), own_mac)
                      : is_own_ipv4(address.bytes.data());
}

bool Interface::is_peer(const IpAddress& address, const MacAddress& own_mac) const {
  return address.ipv6 ? is_peer_ipv6(address.bytes.data(), own_mac)
                      : is_peer_ipv4(address.bytes.data());
}

bool Interface::is_on_link(const IpAddress& address) const {
  if (is_link_local(address)) return true;
  for (const InterfaceAddress& own : addresses) {
    if (own.contains(address)) return true;
  }
  return false;
}

std::optional<IpAddress> Interface::local_address_for(const IpAddress& remote,
                                                      const MacAddress& own_mac) const {
  const auto hop = next_hop(remote, own_mac);
  const IpAddress& near = hop ? *hop : remote;
  std::optional<IpAddress> first;
  for (const InterfaceAddress& own : addresses) {
    // A link-local address is valid only on its link.
    if (own.address.ipv6 != remote.ipv6) continue;
    if (is_link_local(own.address) != is_link_local(remote)) continue;
    if (own.contains(near)) return own.address;
    if (!first) first = own.address;
  }
  if (!first && is_link_local(remote)) return link_local_address(own_mac);
  return first;
}

std::optional<IpAddress> Interface::next_hop(const IpAddress& remote,
                                             const MacAddress& own_mac) const {
  if (!is_peer(remote, own_mac)) return std::nullopt;
  if (is_on_link(remote)) return remote;
  return remote.ipv6 ? gateway6 : gateway4;
}

Status validate(const Interface& interface) {
  if (interface.addresses.empty()) {
    return refuse("no address; give at least one, such as 10.0.0.1/24");
  }
  for (const InterfaceAddress& own : interface.addresses) {
    const auto again = parse_interface_address(to_string(own));
    if (!again.ok()) return again.error();
  }
  if (interface.vlan > kVlanMax) {
    return refuse("vlan is " + std::to_string(interface.vlan) + "; give 1 to 4094, or 0 for none");
  }
  if (interface.mtu < kMtuMin || interface.mtu > kMtuMax) {
    return refuse("mtu is " + std::to_string(interface.mtu) + "; give " + std::to_string(kMtuMin) +
                  " to " + std::to_string(kMtuMax));
  }
  for (const bool ipv6 : {false, true}) {
    const auto& gateway = ipv6 ? interface.gateway6 : interface.gateway4;
    const std::string fault = gateway_fault(interface, gateway, ipv6);
    if (!fault.empty()) return refuse(fault);
  }
  return ok_status();
}

}  // namespace pbox::nic
