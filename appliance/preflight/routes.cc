// Checks that packets of workers arrive by the NIC that has their destination address, and that
// answers can leave by it.
#include <algorithm>
#include <set>

#include "appliance/preflight/checks.h"
#include "config/address.h"

namespace pbox::preflight {
namespace {

using host::Interface;
using nic::InterfaceAddress;

constexpr uint32_t kStrict = 1;  // value of rp_filter

bool overlap(const InterfaceAddress& a, const InterfaceAddress& b) {
  return a.prefix_length < b.prefix_length ? a.contains(b.address) : b.contains(a.address);
}

bool is_used(const InterfaceAddress& own, const std::vector<std::string>& used) {
  const std::string text = to_string(own.address);
  return std::any_of(used.begin(), used.end(), [&](const std::string& each) {
    if (!config::is_wildcard_address(each)) return each == text;
    return each.find(':') != std::string::npos || !own.address.ipv6;
  });
}

struct Faults {
  std::set<std::string> flux;    // pairs: "eth0 and eth1"
  std::set<std::string> strict;  // interfaces
  std::set<std::string> detours;

  void add_neighbour(const Interface& interface, const InterfaceAddress& own,
                     const Interface& other) {
    if (!other.is_up || other.name == interface.name) return;
    const bool is_shared =
        std::any_of(other.networks.begin(), other.networks.end(),
                    [&](const InterfaceAddress& network) { return overlap(network, own); });
    if (!is_shared || own.address.ipv6) return;
    if (other.arp_ignore == 0) {
      const auto [first, second] = std::minmax(interface.name, other.name);
      flux.insert(first + " and " + second);
    }
    if (interface.reverse_path_filter == kStrict) strict.insert(interface.name);
  }

  void add_route(const Interface& interface, const InterfaceAddress& own,
                 const std::vector<host::SourceRoute>& routes) {
    const std::string address = to_string(own.address);
    for (const auto& route : routes) {
      if (route.address != address || route.interface == interface.name) continue;
      detours.insert("from " + address + " of " + interface.name + " through " + route.interface);
      if (!own.address.ipv6 && interface.reverse_path_filter == kStrict) {
        strict.insert(interface.name);
      }
    }
  }
};

std::string joined(const std::set<std::string>& names) {
  std::string list;
  for (const auto& name : names) checks::append(list, ", ", name);
  return list;
}

}  // namespace

Check check_routes(const host::HostFacts& facts, const std::vector<std::string>& used) {
  Faults faults;
  for (const Interface& interface : facts.interfaces) {
    for (const InterfaceAddress& own : interface.networks) {
      if (!interface.is_up || !is_used(own, used)) continue;
      for (const Interface& other : facts.interfaces) faults.add_neighbour(interface, own, other);
      faults.add_route(interface, own, facts.source_routes);
    }
  }
  std::string detours;
  if (!faults.detours.empty()) {
    detours = "answers to hosts behind a router leave " + joined(faults.detours);
  }
  if (faults.flux.empty() && faults.strict.empty()) {
    return checks::ok("routes",
                      detours.empty() ? "each NIC answers for its own addresses" : detours);
  }
  std::string finding;
  std::string remedy;
  if (!faults.strict.empty()) {
    finding = "rp_filter = 1 on " + joined(faults.strict) +
              " drops packets from hosts to which the route leads through another NIC: workers "
              "that use its address get no answer";
    for (const auto& name : faults.strict) {
      checks::append(remedy, ", ", "sysctl -w net.ipv4.conf." + name + ".rp_filter=2");
    }
  }
  if (!faults.flux.empty()) {
    checks::append(finding, "; ",
                   joined(faults.flux) +
                       " are in one network and answer ARP for each other's addresses: packets for "
                       "both may arrive at one of them");
    checks::append(remedy, ", ",
                   "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2");
  }
  if (!detours.empty()) {
    checks::append(finding, "; ", detours);
    checks::append(remedy, ", ",
                   "ip route add default via ROUTER dev NIC table 100 and ip rule add from ADDRESS "
                   "lookup 100, so that answers leave through the same NIC");
  }
  return checks::warn(
      "routes", finding,
      remedy + "; put sysctl settings into a file under /etc/sysctl.d to keep them");
}

}  // namespace pbox::preflight
