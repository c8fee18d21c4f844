#include <algorithm>

#include "appliance/topology/steps.h"

namespace pbox::topology::steps {
namespace {

// A pool's fixed costs: its header, its rings, and what DPDK keeps for each device and queue.
constexpr uint64_t kFixedBytes = 64u << 20;

// Returns the bytes of one rte_mbuf: its headroom, its place in a pool, and a frame with VLAN tag.
uint64_t packet_buffer_bytes(const config::Config& config) {
  constexpr uint64_t kFrameHeadBytes =
      14 + 4 + 20;                            // Ethernet, VLAN, and a device's own header (virtio)
  constexpr uint64_t kFrameBytesMin = 2'048;  // DPDK's default data room, which some drivers need
  constexpr uint64_t kBufferHeadBytes = 64 + 128 + 128;
  constexpr uint64_t kCacheLineBytes = 64;
  const uint64_t mtu = config.data.mtu == 0 ? config::kDpdkMtuDefault : config.data.mtu;
  const uint64_t bytes = kBufferHeadBytes + std::max(kFrameBytesMin, mtu + kFrameHeadBytes);
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

std::string mebibytes(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// Returns how many queues the pipelines on the node have. Pipelines tied to no node count on
// `any_node`.
uint64_t queue_count(const Topology& topology, int node, int any_node) {
  uint64_t count = 0;
  for (const auto& pipeline : topology.pipelines) {
    const int home = pipeline.node == host::kUnknownNode ? any_node : pipeline.node;
    if (home == node) count += pipeline.devices.size();
  }
  return count;
}

}  // namespace

Status size_packet_memory(const config::Config& config, const host::HostFacts& facts,
                          Topology& topology) {
  const uint64_t given_mib = config.dpdk.memory_mib;
  for (auto& node : topology.nodes) {
    const uint64_t queues = queue_count(topology, node.node, topology.nodes[0].node);
    if (queues == 0) continue;
    const uint64_t needed =
        kFixedBytes + queues * kPacketBuffersPerQueue * packet_buffer_bytes(config);
    node.packet_memory_bytes = given_mib != 0 ? given_mib << 20
                                              : (needed + host::kHugepageBytes - 1) /
                                                    host::kHugepageBytes * host::kHugepageBytes;
    const auto fact =
        std::find_if(facts.nodes.begin(), facts.nodes.end(),
                     [&](const host::NumaNode& each) { return each.node == node.node; });
    if (fact != facts.nodes.end() && node.packet_memory_bytes > fact->memory_bytes) {
      return Error{ErrorCode::kResourceExhausted,
                   "dpdk.memory_mib = " + std::to_string(given_mib) + ": packet memory of " +
                       mebibytes(node.packet_memory_bytes) + " for " + std::to_string(queues) +
                       " queues is more than NUMA node " + std::to_string(node.node) + " has, " +
                       mebibytes(fact->memory_bytes) +
                       "; give fewer MiB, or lower pipeline.count or data.mtu"};
    }
    topology.reasons.push_back(
        "dpdk.memory_mib = " + std::to_string(given_mib) + ": " +
        mebibytes(node.packet_memory_bytes) + " of packet memory on node " +
        std::to_string(node.node) + " for " + std::to_string(queues) + " queues, in " +
        (config.dpdk.no_huge ? "ordinary pages" : "hugepages") + "; it is not available to jobs");
  }
  return ok_status();
}

}  // namespace pbox::topology::steps
