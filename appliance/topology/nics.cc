#include <algorithm>
#include <map>

#include "appliance/topology/steps.h"
#include "base/check.h"
#include "config/address.h"
#include "config/cpu_list.h"

namespace pbox::topology::steps {
namespace {

bool is_v6(const std::string& address) {
  return address.find(':') != std::string::npos;
}

// Returns one nameless server per node, so that pipelines spread over nodes without regard to NICs.
std::vector<Server> without_nics(const config::Config& config, const std::vector<Seat>& seats) {
  std::vector<Server> servers;
  for (const int node : nodes_of(seats)) servers.push_back(Server{"", node, config.box.listen, {}});
  return servers;
}

// Returns the address at which workers reach the NIC if `listen` is a wildcard; empty if it has
// none that fits. 0.0.0.0 needs an IPv4 address; :: takes either family.
std::string address_under_wildcard(const host::Nic& nic, const std::string& listen) {
  for (const auto& address : nic.addresses) {
    if (is_v6(listen) || !is_v6(address)) return address;
  }
  return {};
}

std::vector<host::Nic> nics_under_wildcard(const std::string& listen, const host::HostFacts& facts,
                                           Reasons& reasons) {
  const bool are_addresses_known =
      std::any_of(facts.nics.begin(), facts.nics.end(),
                  [](const host::Nic& nic) { return !nic.addresses.empty(); });
  std::vector<host::Nic> served;
  for (auto nic : facts.nics) {
    const std::string address = address_under_wildcard(nic, listen);
    if (address.empty() && (are_addresses_known || facts.is_live)) {
      reasons.push_back("NIC " + nic.name + ": left out, it has no address for " + listen);
      continue;
    }
    nic.addresses = {address.empty() ? listen : address};
    served.push_back(std::move(nic));
  }
  if (!served.empty() && !are_addresses_known) {
    reasons.push_back("NIC addresses are not known: every NIC of " + facts.source +
                      " is assumed to have one that workers use");
  }
  return served;
}

std::vector<host::Nic> nics_with_address(const std::string& listen, const host::HostFacts& facts) {
  std::vector<host::Nic> served;
  for (auto nic : facts.nics) {
    const auto& list = nic.addresses;
    if (std::find(list.begin(), list.end(), listen) == list.end()) continue;
    nic.addresses = {listen};
    served.push_back(std::move(nic));
  }
  return served;
}

// Leaves out NICs that are slower than the rest. All NICs carry the same share of the bytes, so the
// slowest sets the pace: the threshold is the speed at which count x speed is largest. A NIC whose
// speed is not known stays.
void leave_out_slow(std::vector<host::Nic>& nics, Reasons& reasons) {
  uint32_t best_mbps = 0;
  uint64_t best_total = 0;
  for (const auto& slowest : nics) {
    uint64_t total = 0;
    for (const auto& nic : nics) {
      if (nic.link_mbps == 0 || nic.link_mbps >= slowest.link_mbps) total += slowest.link_mbps;
    }
    if (total < best_total || (total == best_total && slowest.link_mbps <= best_mbps)) continue;
    best_total = total;
    best_mbps = slowest.link_mbps;
  }
  const auto is_slow = [&](const host::Nic& nic) {
    if (nic.link_mbps == 0 || nic.link_mbps >= best_mbps) return false;
    reasons.push_back("NIC " + nic.name + ": left out, its " + std::to_string(nic.link_mbps) +
                      " Mb/s would slow down the others, which have " + std::to_string(best_mbps));
    return true;
  };
  std::vector<host::Nic> kept;
  for (auto& nic : nics) {
    if (!is_slow(nic)) kept.push_back(std::move(nic));
  }
  nics = std::move(kept);
}

// Leaves out NICs on nodes without a usable core.
void leave_out_coreless(const std::vector<Seat>& seats, std::vector<host::Nic>& nics,
                        Reasons& reasons) {
  const auto nodes = nodes_of(seats);
  std::vector<host::Nic> kept;
  for (auto& nic : nics) {
    if (std::binary_search(nodes.begin(), nodes.end(), nic.node)) {
      kept.push_back(std::move(nic));
    } else {
      reasons.push_back("NIC " + nic.name + ": left out, no usable core is on its NUMA node " +
                        std::to_string(nic.node));
    }
  }
  // If no NIC would be left, keeps all of them: the caller then fails, and its error names the
  // first.
  if (!kept.empty()) nics = std::move(kept);
}

}  // namespace

std::vector<int> nodes_of(const std::vector<Seat>& seats) {
  std::vector<int> nodes;
  for (const auto& seat : seats) nodes.push_back(seat.node);
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

void settle_unknown_nodes(const std::vector<Seat>& seats, std::vector<host::Nic>& nics,
                          Reasons& reasons) {
  std::map<int, size_t> seat_count;
  std::map<int, size_t> nic_count;
  for (const auto& seat : seats) ++seat_count[seat.node];
  for (const auto& nic : nics) ++nic_count[nic.node];
  for (auto& nic : nics) {
    if (nic.node != host::kUnknownNode) continue;
    int best = seats[0].node;
    for (const auto& [node, count] : seat_count) {
      if (nic_count[node] * seat_count[best] < nic_count[best] * count) best = node;
    }
    nic.node = best;
    ++nic_count[best];
    if (seat_count.size() > 1) {
      const std::string why =
          nic.pci_address.empty() ? "it is not on PCI" : "the firmware names no NUMA node";
      reasons.push_back("NIC " + nic.name + ": " + why + ", so it is served from node " +
                        std::to_string(best));
    }
  }
}

// Data never crosses a NUMA node, so cores without a NIC on their node run no pipeline.
Status keep_seats_near(const config::Config& config, const std::vector<host::Nic>& nics,
                       std::vector<Seat>& seats, Reasons& reasons) {
  std::vector<int> far;
  const auto is_far = [&](const Seat& seat) {
    const bool is_near = std::any_of(nics.begin(), nics.end(),
                                     [&](const host::Nic& nic) { return nic.node == seat.node; });
    if (!is_near) far.push_back(seat.cpu);
    return !is_near;
  };
  std::vector<Seat> near;
  for (const auto& seat : seats) {
    if (!is_far(seat)) near.push_back(seat);
  }
  PBOX_DCHECK(near.size() + far.size() == seats.size());
  if (far.empty()) return ok_status();
  const std::string cpus = config::print_cpu_list(far);
  if (!config.pipeline.cores.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "pipeline.cores = " + config::print_cpu_list(config.pipeline.cores) + ": cpus " +
                     cpus + " are on a NUMA node without a serving NIC; name cpus near " +
                     nics[0].name + ", or set pipeline.numa = off"};
  }
  if (near.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "NIC " + nics[0].name + " is on NUMA node " + std::to_string(nics[0].node) +
                     ", where this process may use no core; widen its cpuset, or set "
                     "pipeline.numa = off"};
  }
  reasons.push_back("cpus " + cpus +
                    " run no pipeline: their NUMA node has no serving NIC, and data never "
                    "crosses nodes");
  seats = std::move(near);
  return ok_status();
}

Result<std::vector<Server>> serving_nics(const config::Config& config, const host::HostFacts& facts,
                                         std::vector<Seat>& seats, Reasons& reasons) {
  const std::string& listen = config.box.listen;
  if (config::is_loopback_address(listen)) {
    reasons.push_back("box.listen = " + listen + " is loopback: no NIC is used");
    return without_nics(config, seats);
  }
  auto nics = config::is_wildcard_address(listen) ? nics_under_wildcard(listen, facts, reasons)
                                                  : nics_with_address(listen, facts);
  if (nics.empty()) {
    reasons.push_back("no PCI NIC has an address for box.listen = " + listen +
                      ": pipelines are spread without regard to NICs");
    return without_nics(config, seats);
  }
  leave_out_slow(nics, reasons);
  if (config.pipeline.numa == config::OnOffAuto::kOff) {
    for (auto& nic : nics) nic.node = host::kUnknownNode;
  } else {
    settle_unknown_nodes(seats, nics, reasons);
    leave_out_coreless(seats, nics, reasons);
    const auto status = keep_seats_near(config, nics, seats, reasons);
    if (!status) return status.error();
  }
  PBOX_CHECK(!nics.empty() && !seats.empty());
  std::vector<Server> servers;
  for (const auto& nic : nics) servers.push_back(Server{nic.name, nic.node, nic.addresses[0], {}});
  return servers;
}

}  // namespace pbox::topology::steps
