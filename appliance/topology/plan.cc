#include "appliance/topology/plan.h"

#include <algorithm>

#include "appliance/topology/steps.h"
#include "base/check.h"
#include "config/cpu_list.h"

namespace pbox::topology {
namespace {

using steps::Place;
using steps::Seat;
using steps::Server;

PipelinePlan pipeline_at(const Place& place, const std::vector<Server>& servers,
                         const std::vector<Seat>& seats) {
  PBOX_CHECK(place.seat < seats.size() && place.server < servers.size());
  PipelinePlan pipeline;
  pipeline.cpu = seats[place.seat].cpu;
  pipeline.node = seats[place.seat].node;
  pipeline.address = servers[place.server].address;
  pipeline.nic = servers[place.server].nic;
  pipeline.queue = place.queue;
  pipeline.devices = servers[place.server].devices;
  return pipeline;
}

// Fills topology.nodes: each node's pipelines, and its CPUs that are left for control. A pipeline
// owns all hardware threads of its core.
void assign_control(const host::HostFacts& facts, const std::vector<Place>& placed,
                    const std::vector<Seat>& seats, Topology& topology) {
  std::vector<int> busy_cpus;
  for (const auto& place : placed) {
    const auto& cpus = seats[place.seat].core_cpus;
    busy_cpus.insert(busy_cpus.end(), cpus.begin(), cpus.end());
  }
  PBOX_CHECK(!topology.pipelines.empty());
  const bool is_pinned = topology.pipelines[0].pinned;
  for (const auto& fact : facts.nodes) {
    NodePlan node;
    node.node = fact.node;
    for (const auto& pipeline : topology.pipelines) {
      if (pipeline.node == fact.node) node.pipelines.push_back(pipeline.index);
    }
    for (const auto& core : facts.cores) {
      if (core.node != fact.node || !is_pinned) continue;
      for (const int cpu : core.cpus) {
        if (std::find(busy_cpus.begin(), busy_cpus.end(), cpu) != busy_cpus.end()) continue;
        node.control_cpus.push_back(cpu);
        topology.control_cpus.push_back(cpu);
      }
    }
    std::sort(node.control_cpus.begin(), node.control_cpus.end());
    topology.nodes.push_back(std::move(node));
  }
  std::sort(topology.control_cpus.begin(), topology.control_cpus.end());
  if (!topology.control_cpus.empty()) {
    topology.reasons.push_back("control and admin run on cpus " +
                               config::print_cpu_list(topology.control_cpus));
  } else if (is_pinned) {
    topology.reasons.push_back("pipelines use every core: control and admin share cores with them");
  }
}

}  // namespace

Result<Topology> plan(const config::Config& config, const host::HostFacts& facts) {
  Topology topology;
  topology.source = facts.source;
  auto& reasons = topology.reasons;
  auto seats = steps::usable_seats(config, facts, reasons);
  if (!seats) return seats.error();
  const auto budget = steps::budget_of(*seats, facts, reasons);
  const bool is_dpdk = config.data.port == config::PortKind::kDpdk;
  const auto servers = is_dpdk ? steps::serving_devices(config, facts, *seats, reasons)
                               : steps::serving_nics(config, facts, *seats, reasons);
  if (!servers) return servers.error();
  steps::reserve_control_cores(config, budget, *seats, reasons);
  steps::share_cores(config, *seats, reasons);
  const auto placed = steps::places(config, budget, *servers, *seats, reasons);
  if (!placed) return placed.error();

  const bool is_pinned = steps::pipelines_are_pinned(config, budget, reasons);
  for (const auto& place : *placed) {
    PipelinePlan pipeline = pipeline_at(place, *servers, *seats);
    pipeline.index = static_cast<uint32_t>(topology.pipelines.size());
    pipeline.pinned = is_pinned;
    if (config.data.port_first != 0) {
      pipeline.udp_port = static_cast<uint16_t>(config.data.port_first + pipeline.index);
    }
    topology.pipelines.push_back(std::move(pipeline));
  }
  assign_control(facts, *placed, *seats, topology);
  if (is_dpdk) {
    steps::explain_devices(config, *servers, topology, reasons);
    const auto sized = steps::size_packet_memory(config, facts, topology);
    if (!sized) return sized.error();
  }
  if (config.data.port == config::PortKind::kRdma) {
    const auto chosen = steps::choose_rdma_devices(config, facts, topology);
    if (!chosen) return chosen.error();
  }
  const auto status = steps::divide_memory(config, facts, topology);
  if (!status) return status.error();
  return topology;
}

}  // namespace pbox::topology
