// The steps of plan(), each pure: cores, then NICs, then places, then memory. Private to
// appliance/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/topology/plan.h"

namespace pbox::topology::steps {

using Reasons = std::vector<std::string>;

// A physical core on which one pipeline may run.
struct Seat {
  int cpu = 0;   // named in pipeline.cores, or else the first allowed CPU of the core
  int node = 0;  // kUnknownNode for all if pipeline.numa = off: any seat then suits any NIC
  std::vector<int> core_cpus;
};

// A NIC that carries data. A server without a name stands for a node without a NIC.
struct Server {
  std::string nic;
  int node = 0;
  std::string address;
  std::vector<uint32_t> devices;  // indices into config.dpdk.devices; empty with sockets
};

// The cores that pipelines may count on.
struct Budget {
  size_t core_count = 0;     // usable physical cores
  bool is_small = false;     // at most kSmallCoreCount
  uint32_t quota_count = 0;  // whole CPUs that the control group grants; 0: no quota
};
inline constexpr size_t kSmallCoreCount = 4;
inline constexpr size_t kReserveFromCoreCount = 8;

// cores.cc: returns the cores named by pipeline.cores, or all usable cores.
Result<std::vector<Seat>> usable_seats(const config::Config& config, const host::HostFacts& facts,
                                       Reasons& reasons);
Budget budget_of(const std::vector<Seat>& seats, const host::HostFacts& facts, Reasons& reasons);
// Keeps the first core of each node free for control and interrupts on large machines.
void reserve_control_cores(const config::Config& config, const Budget& budget,
                           std::vector<Seat>& seats, Reasons& reasons);
// Adds seats on the same cores: pipelines that sleep and are not pinned may outnumber the cores.
void share_cores(const config::Config& config, std::vector<Seat>& seats, Reasons& reasons);
bool pipelines_are_pinned(const config::Config& config, const Budget& budget, Reasons& reasons);

// nics.cc: returns the NICs that serve data under box.listen; never empty. Removes the seats of
// nodes without a NIC. Fails if pipeline.cores names a core of such a node.
Result<std::vector<Server>> serving_nics(const config::Config& config, const host::HostFacts& facts,
                                         std::vector<Seat>& seats, Reasons& reasons);

// Assigns each NIC whose node is not known to the node with the fewest NICs per core.
void settle_unknown_nodes(const std::vector<Seat>& seats, std::vector<host::Nic>& nics,
                          Reasons& reasons);
// Removes the seats of nodes without a NIC; fails if pipeline.cores names one, or if none is left.
Status keep_seats_near(const config::Config& config, const std::vector<host::Nic>& nics,
                       std::vector<Seat>& seats, Reasons& reasons);
// Returns the nodes of the seats, ascending, each once.
std::vector<int> nodes_of(const std::vector<Seat>& seats);

// devices.cc: like serving_nics(), but for data.port = dpdk. Each group of devices is a server.
// Fails if a device does not exist, belongs to the kernel, or has no core on its node.
Result<std::vector<Server>> serving_devices(const config::Config& config,
                                            const host::HostFacts& facts, std::vector<Seat>& seats,
                                            Reasons& reasons);
// Adds reasons that say which server has which pipelines, and what is not known before the devices
// are opened.
void explain_devices(const config::Config& config, const std::vector<Server>& servers,
                     const Topology& topology, Reasons& reasons);

// places.cc: the number of pipelines, and the server and seat of each.
struct Place {
  size_t server = 0;
  size_t seat = 0;
  uint32_t queue = 0;
};
Result<std::vector<Place>> places(const config::Config& config, const Budget& budget,
                                  const std::vector<Server>& servers,
                                  const std::vector<Seat>& seats, Reasons& reasons);

// packets.cc: fills the nodes' packet memory. To be called before divide_memory(), since jobs
// cannot have it.
Status size_packet_memory(const config::Config& config, const host::HostFacts& facts,
                          Topology& topology);

// rdma.cc: chooses an RDMA device for each pipeline, on its NIC or at least on its node. Fails if a
// named device does not exist or has no link, or if no device has a link. Unless pipeline.numa =
// off, also fails if a pipeline has no such device on its NIC or node.
Status choose_rdma_devices(const config::Config& config, const host::HostFacts& facts,
                           Topology& topology);

// memory.cc: fills the arenas and node memory of a topology whose pipelines have their nodes.
Status divide_memory(const config::Config& config, const host::HostFacts& facts,
                     Topology& topology);

}  // namespace pbox::topology::steps
