#include <algorithm>
#include <cstdio>

#include "appliance/topology/steps.h"
#include "base/check.h"

namespace pbox::topology::steps {
namespace {

uint64_t less(uint64_t bytes, uint64_t taken) {
  return bytes - std::min(bytes, taken);
}

uint64_t packet_bytes(const Topology& topology, int node) {
  for (const auto& plan : topology.nodes) {
    if (plan.node == node) return plan.packet_memory_bytes;
  }
  return 0;
}

// Returns the bytes of packet memory that do not fit into free 1 GiB pages, which DPDK takes first.
uint64_t packet_bytes_beyond_giant(const config::Config& config, const Topology& topology,
                                   const host::NumaNode& node) {
  const bool takes_giant = config.data.port == config::PortKind::kDpdk && !config.dpdk.no_huge;
  const uint64_t giant = takes_giant ? node.giant_pages_free * host::kGiantPageBytes : 0;
  return less(packet_bytes(topology, node.node), giant);
}

// Returns the bytes of free 2 MiB pages that packet memory leaves to the arenas.
uint64_t arena_page_bytes(const config::Config& config, const Topology& topology,
                          const host::NumaNode& node) {
  const uint64_t free_bytes = node.hugepages_free * host::kHugepageBytes;
  if (config.dpdk.no_huge) return free_bytes;
  const uint64_t packets = packet_bytes_beyond_giant(config, topology, node);
  return less(free_bytes, packets) / host::kHugepageBytes * host::kHugepageBytes;
}

// Returns the bytes that NumaArena can map on the node. Pages reserved as hugepages are lost to
// everything else; 1 GiB pages are lost to NumaArena too.
uint64_t usable_bytes(const config::Config& config, const Topology& topology,
                      const host::NumaNode& node) {
  const uint64_t bytes = less(node.memory_bytes, node.giant_pages_total * host::kGiantPageBytes);
  const uint64_t packets = packet_bytes_beyond_giant(config, topology, node);
  if (config.memory.hugepages != config::OnOffAuto::kOff) return less(bytes, packets);
  const uint64_t free_bytes = config.dpdk.no_huge ? 0 : node.hugepages_free * host::kHugepageBytes;
  return less(bytes, node.hugepages_total * host::kHugepageBytes + less(packets, free_bytes));
}

std::string gibibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

void explain_hugepages(const config::Config& config, const host::HostFacts& facts,
                       const Topology& topology, Reasons& reasons) {
  if (config.memory.hugepages == config::OnOffAuto::kOff) {
    reasons.push_back("memory.hugepages = off: transparent hugepages only");
    return;
  }
  for (const auto& node : facts.nodes) {
    const auto plan = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                                   [&](const NodePlan& each) { return each.node == node.node; });
    if (plan == topology.nodes.end() || plan->job_memory_bytes == 0) continue;
    const std::string name = "node " + std::to_string(node.node) + ": ";
    const uint64_t free_bytes = arena_page_bytes(config, topology, node);
    if (free_bytes == 0) {
      reasons.push_back(name + "no free 2 MiB hugepages: transparent ones where the kernel can");
    } else if (free_bytes < plan->job_memory_bytes) {
      reasons.push_back(name + "free 2 MiB hugepages cover " + gibibytes(free_bytes) + " of " +
                        gibibytes(plan->job_memory_bytes) + "; the rest is transparent");
    } else {
      reasons.push_back(name + "free 2 MiB hugepages cover all arenas");
    }
  }
}

bool has_arena_pages(const config::Config& config, const host::HostFacts& facts,
                     const Topology& topology, int node) {
  return std::any_of(facts.nodes.begin(), facts.nodes.end(), [&](const host::NumaNode& each) {
    return (node == host::kUnknownNode || each.node == node) &&
           arena_page_bytes(config, topology, each) > 0;
  });
}

// Returns whether the node holds arenas: each node that runs pipelines does, and every node if
// pipelines are tied to none.
bool holds_arenas(const Topology& topology, int node) {
  for (const auto& pipeline : topology.pipelines) {
    if (pipeline.node == node || pipeline.node == host::kUnknownNode) return true;
  }
  return false;
}

}  // namespace

Status divide_memory(const config::Config& config, const host::HostFacts& facts,
                     Topology& topology) {
  uint64_t near_bytes = 0;
  for (const auto& node : facts.nodes) {
    if (holds_arenas(topology, node.node)) near_bytes += usable_bytes(config, topology, node);
  }
  // The control group's memory limit does not count hugepages. RDMA's buffers are in hugepages only
  // if some are free.
  const bool is_charged = config.dpdk.no_huge || config.data.port == config::PortKind::kRdma;
  uint64_t charged_bytes = 0;
  for (const auto& node : topology.nodes) {
    if (is_charged) charged_bytes += node.packet_memory_bytes;
  }
  const uint64_t limit = facts.memory_limit_bytes;
  const uint64_t budget =
      limit == 0 ? near_bytes : std::min(near_bytes, less(limit, charged_bytes));
  topology.job_memory_bytes =
      static_cast<uint64_t>(static_cast<double>(budget) * config.memory.job_share);
  PBOX_DCHECK(topology.job_memory_bytes <= budget);
  for (auto& node : topology.nodes) {
    if (!holds_arenas(topology, node.node)) continue;
    for (const auto& each : facts.nodes) {
      if (each.node != node.node || near_bytes == 0) continue;
      const double share = static_cast<double>(usable_bytes(config, topology, each)) /
                           static_cast<double>(near_bytes);
      PBOX_DCHECK(share >= 0 && share <= 1);
      node.job_memory_bytes =
          static_cast<uint64_t>(static_cast<double>(topology.job_memory_bytes) * share);
    }
  }
  const bool uses_hugepages = config.memory.hugepages != config::OnOffAuto::kOff;
  for (auto& pipeline : topology.pipelines) {
    uint64_t bytes = topology.job_memory_bytes;
    size_t sharers = topology.pipelines.size();
    for (const auto& node : topology.nodes) {
      if (node.node != pipeline.node) continue;
      bytes = node.job_memory_bytes;
      sharers = node.pipelines.size();
    }
    PBOX_CHECK(sharers > 0);
    pipeline.arena_bytes = bytes / sharers / host::kHugepageBytes * host::kHugepageBytes;
    pipeline.hugepages = uses_hugepages && has_arena_pages(config, facts, topology, pipeline.node);
    if (pipeline.arena_bytes == 0) {
      return Error{ErrorCode::kResourceExhausted,
                   "NUMA node " + std::to_string(pipeline.node) + " has " + gibibytes(bytes) +
                       " for " + std::to_string(sharers) +
                       " pipelines: too little; lower pipeline.count, raise memory.job_share, or "
                       "set pipeline.numa = off if the node has no memory of its own"};
    }
  }
  topology.reasons.push_back(
      "memory.job_share = " + std::to_string(config.memory.job_share).substr(0, 4) +
      ": jobs may take " + gibibytes(topology.job_memory_bytes) + " of " + gibibytes(budget) +
      (budget == near_bytes ? "" : ", the control group's limit"));
  explain_hugepages(config, facts, topology, topology.reasons);
  return ok_status();
}

}  // namespace pbox::topology::steps
