#include <algorithm>
#include <cstdio>

#include "appliance/topology_steps.h"

namespace pbox::appliance::steps {
namespace {

// What NumaArena can map on the node: pages reserved as hugepages are lost to everything else.
uint64_t usable_bytes(const config::Config& config, const NumaNode& node) {
  const uint64_t reserved = node.hugepages_total * kHugepageBytes;
  if (config.memory.hugepages != config::OnOffAuto::kOff) return node.memory_bytes;
  return node.memory_bytes - std::min(reserved, node.memory_bytes);
}

std::string gibibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1u << 30));
  return text;
}

void explain_hugepages(const config::Config& config, const HostFacts& facts,
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
    const uint64_t free_bytes = node.hugepages_free * kHugepageBytes;
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

uint64_t free_hugepages(const HostFacts& facts, int node) {
  uint64_t count = 0;
  for (const auto& each : facts.nodes) {
    if (node == kUnknownNode || each.node == node) count += each.hugepages_free;
  }
  return count;
}

// Of the nodes that run pipelines; of all when pipelines are tied to none.
bool holds_arenas(const Topology& topology, int node) {
  for (const auto& pipeline : topology.pipelines) {
    if (pipeline.node == node || pipeline.node == kUnknownNode) return true;
  }
  return false;
}

}  // namespace

Status divide_memory(const config::Config& config, const HostFacts& facts, Topology& topology) {
  uint64_t near_bytes = 0;
  for (const auto& node : facts.nodes) {
    if (holds_arenas(topology, node.node)) near_bytes += usable_bytes(config, node);
  }
  const uint64_t limit = facts.memory_limit_bytes;
  const uint64_t budget = limit == 0 ? near_bytes : std::min(near_bytes, limit);
  topology.job_memory_bytes =
      static_cast<uint64_t>(static_cast<double>(budget) * config.memory.job_share);
  for (auto& node : topology.nodes) {
    if (!holds_arenas(topology, node.node)) continue;
    for (const auto& each : facts.nodes) {
      if (each.node != node.node || near_bytes == 0) continue;
      const double share =
          static_cast<double>(usable_bytes(config, each)) / static_cast<double>(near_bytes);
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
    pipeline.arena_bytes = bytes / sharers / kHugepageBytes * kHugepageBytes;
    pipeline.hugepages = uses_hugepages && free_hugepages(facts, pipeline.node) > 0;
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

}  // namespace pbox::appliance::steps
