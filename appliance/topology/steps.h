// The steps of plan(), each pure: cores, then NICs, then places, then memory. Private to
// appliance/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/topology/plan.h"

namespace pbox::appliance::steps {

using Reasons = std::vector<std::string>;

// A physical core on which one pipeline may run.
struct Seat {
  int cpu = 0;   // the pipeline's
  int node = 0;  // kUnknownNode for all when pipeline.numa = off: then any seat suits any NIC
  std::vector<int> core_cpus;
};

// A NIC that carries data; one without a name stands for "no NIC" on its node.
struct Server {
  std::string nic;
  int node = 0;
  std::string address;
  std::vector<uint32_t> devices;  // indices into config.dpdk.devices; empty with sockets
};

// Few cores, or a part of each: pipelines share them with other work.
struct Budget {
  size_t core_count = 0;     // usable physical cores
  bool is_small = false;     // at most kSmallCoreCount
  uint32_t quota_count = 0;  // whole CPUs that the control group pays for; 0: no quota
};
inline constexpr size_t kSmallCoreCount = 4;
inline constexpr size_t kReserveFromCoreCount = 8;

// topology_cores.cc: the cores named by pipeline.cores, or all that may be used.
Result<std::vector<Seat>> usable_seats(const config::Config& config, const HostFacts& facts,
                                       Reasons& reasons);
Budget budget_of(const std::vector<Seat>& seats, const HostFacts& facts, Reasons& reasons);
// On large machines the first core of each node stays free for control: it takes the interrupts.
void reserve_control_cores(const config::Config& config, const Budget& budget,
                           std::vector<Seat>& seats, Reasons& reasons);
// Pipelines that sleep and are pinned nowhere may outnumber the cores: adds seats of the same
// cores.
void share_cores(const config::Config& config, std::vector<Seat>& seats, Reasons& reasons);
bool pipelines_are_pinned(const config::Config& config, const Budget& budget, Reasons& reasons);

// topology_nics.cc: who serves data under box.listen; never empty. Fails when pipeline.cores names
// a core of a node that no NIC is on. Removes the seats of nodes without a NIC.
Result<std::vector<Server>> serving_nics(const config::Config& config, const HostFacts& facts,
                                         std::vector<Seat>& seats, Reasons& reasons);

// A NIC whose node is not known goes where fewest NICs are for the cores.
void settle_unknown_nodes(const std::vector<Seat>& seats, std::vector<Nic>& nics, Reasons& reasons);
// Removes the seats of nodes without a NIC; fails when pipeline.cores names one, or none is left.
Status keep_seats_near(const config::Config& config, const std::vector<Nic>& nics,
                       std::vector<Seat>& seats, Reasons& reasons);
std::vector<int> nodes_of(const std::vector<Seat>& seats);  // ascending, each once

// topology_devices.cc: the same for data.port = dpdk, where each group of devices is a server.
// Fails when a device is not there, belongs to the kernel, or has no core on its node.
Result<std::vector<Server>> serving_devices(const config::Config& config, const HostFacts& facts,
                                            std::vector<Seat>& seats, Reasons& reasons);
// Which server has which pipelines, and what of its devices only opening them will show.
void explain_devices(const config::Config& config, const std::vector<Server>& servers,
                     const Topology& topology, Reasons& reasons);

// topology_places.cc: how many pipelines, and which server and seat each gets.
struct Place {
  size_t server = 0;
  size_t seat = 0;
  uint32_t queue = 0;
};
Result<std::vector<Place>> places(const config::Config& config, const Budget& budget,
                                  const std::vector<Server>& servers,
                                  const std::vector<Seat>& seats, Reasons& reasons);

// topology_packets.cc: fills the nodes' packet memory. Before divide_memory: it is no job's.
Status size_packet_memory(const config::Config& config, const HostFacts& facts, Topology& topology);

// topology_rdma.cc: an RDMA device for each pipeline, on its NIC or at least on its node. Fails
// when a device that is named is not there or has no link, and, unless pipeline.numa = off, when a
// pipeline's node has none.
Status choose_rdma_devices(const config::Config& config, const HostFacts& facts,
                           Topology& topology);

// topology_memory.cc: fills arenas and node memory of a topology whose pipelines have their nodes.
Status divide_memory(const config::Config& config, const HostFacts& facts, Topology& topology);

}  // namespace pbox::appliance::steps
