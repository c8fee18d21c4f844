// The plan of a box: which core runs which pipeline, which NIC queue feeds it, and which NUMA node
// its memory lives on. A pure function of configuration and host facts, computed before anything
// runs. `pboxctl plan` prints it.
//
// The rule is PHub's (Luo et al., SoCC 2018, section 3): a pipeline's core, its queue and its
// memory share the NUMA node of its NIC, each NIC has the same number of pipelines, and no two
// pipelines share a physical core, so that no aggregated byte crosses a socket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/host/facts.h"
#include "base/result.h"
#include "config/config.h"

namespace pbox::topology {

// Packet buffers that the plan counts for each queue of each DPDK device if dpdk.memory_mib = 0:
// two rings of 1024, the packets that the pipeline holds, and the small buffers for pieces of
// packets (nic/dpdk/device.cc).
inline constexpr uint32_t kPacketBuffersPerQueue = 4'096;

struct PipelinePlan {
  uint32_t index = 0;     // in [0, pipelines.size())
  int cpu = -1;           // CPU of its core, see steps::Seat; a hint only unless `pinned`
  bool pinned = false;    // the pipeline's thread runs on `cpu` and nowhere else
  int node = -1;          // NUMA node of core and memory; kAnyNumaNode when pipeline.numa = off
  std::string address;    // address to bind and to announce; with a wildcard, each worker is told
                          // the local address of its control connection
  uint16_t udp_port = 0;  // 0: the kernel chooses
  std::string nic;        // empty: no NIC (loopback, or none was found)
  uint32_t queue = 0;     // queue of that NIC, in [0, pipelines of that NIC)
  std::vector<uint32_t> devices;  // indices into config.dpdk.devices, which share `address`: the
                                  // pipeline has `queue` on each; empty unless data.port = dpdk
  std::string rdma_device;        // used beside the socket; empty unless data.port = rdma
  uint64_t arena_bytes = 0;       // most memory that jobs may take on this pipeline
  bool hugepages = false;         // try 2 MiB pages: they are allowed, and the node had free ones
  bool operator==(const PipelinePlan&) const = default;
};

struct NodePlan {
  int node = 0;
  std::vector<uint32_t> pipelines;  // indices into Topology::pipelines
  std::vector<int> control_cpus;    // CPUs of this node for control, admin and everything else
  uint64_t job_memory_bytes = 0;
  uint64_t packet_memory_bytes = 0;  // DPDK's pools and RDMA's buffers; not counted in jobs' memory
  bool operator==(const NodePlan&) const = default;
};

struct Topology {
  std::string source;  // HostFacts::source
  std::vector<NodePlan> nodes;
  std::vector<PipelinePlan> pipelines;  // by index
  std::vector<int> control_cpus;        // CPUs of the main thread; empty: any
  uint64_t job_memory_bytes = 0;        // most memory that all jobs may take together
  std::vector<std::string> reasons;     // a sentence for each decision and each fallback
  bool operator==(const Topology&) const = default;
};

// Makes the plan. Pure; any thread. Fails if the configuration asks for something that the machine
// does not have; the error names the key, the value and the remedy.
Result<Topology> plan(const config::Config& config, const host::HostFacts& facts);

}  // namespace pbox::topology
