#include <algorithm>

#include "appliance/topology/rdma_queue.h"
#include "appliance/topology/steps.h"
#include "base/check.h"

namespace pbox::topology::steps {
namespace {

struct Candidate {
  const host::RdmaFacts* device;
  uint32_t pipelines = 0;  // number of pipelines that it serves
};

std::string listed(const std::vector<host::RdmaFacts>& devices) {
  std::string text;
  for (const auto& device : devices) {
    text += (text.empty() ? "" : ", ") + device.name + " (";
    if (!device.interface.empty()) text += device.interface + ", ";
    text += device.node == host::kUnknownNode ? "no node" : "node " + std::to_string(device.node);
    text += device.is_active ? ")" : ", no link)";
  }
  return text;
}

Error none_active(const host::HostFacts& facts) {
  const std::string known = listed(facts.rdma);
  return {ErrorCode::kUnavailable,
          "data.port = rdma, but " + facts.source + " has no RDMA device with a link" +
              (known.empty() ? "" : ": " + known) +
              "; load its driver and bring its interface up, or set data.port = socket"};
}

Result<std::vector<Candidate>> candidates(const config::Config& config,
                                          const host::HostFacts& facts, Reasons& reasons) {
  std::vector<Candidate> found;
  for (const auto& name : config.rdma.devices) {
    const auto device =
        std::find_if(facts.rdma.begin(), facts.rdma.end(),
                     [&](const host::RdmaFacts& each) { return each.name == name; });
    if (device == facts.rdma.end()) {
      const std::string known = listed(facts.rdma);
      return Error{ErrorCode::kInvalidArgument,
                   "rdma.devices: " + name + " is not an RDMA device of " + facts.source + "; " +
                       (known.empty() ? "it has none" : "choose among " + known)};
    }
    if (!device->is_active) {
      return Error{ErrorCode::kInvalidArgument, "rdma.devices: " + name +
                                                    " has no link; bring its network interface " +
                                                    device->interface + " up"};
    }
    found.push_back({&*device});
  }
  if (!config.rdma.devices.empty()) return found;
  for (const auto& device : facts.rdma) {
    if (device.is_active) {
      found.push_back({&device});
    } else {
      reasons.push_back("RDMA device " + device.name + ": left out, it has no link");
    }
  }
  if (found.empty()) return none_active(facts);
  return found;
}

// Returns the device on the pipeline's NIC. If there is none, returns the device on the pipeline's
// node, or with `may_cross` on any node, that serves the fewest pipelines; null if there is none
// either. Sets `why` to the reason.
Candidate* nearest(const PipelinePlan& pipeline, bool may_cross, std::vector<Candidate>& all,
                   std::string& why) {
  for (auto& each : all) {
    if (pipeline.nic.empty() || each.device->interface != pipeline.nic) continue;
    why = "it is on the pipeline's NIC, " + pipeline.nic;
    return &each;
  }
  Candidate* best = nullptr;
  for (auto& each : all) {
    const int node = each.device->node;
    const bool is_near = node == host::kUnknownNode || node == pipeline.node;
    if ((!is_near && !may_cross) || (best != nullptr && best->pipelines <= each.pipelines))
      continue;
    best = &each;
  }
  if (best == nullptr) return nullptr;
  why = may_cross ? "pipeline.numa = off, so data may cross NUMA nodes"
        : best->device->node == host::kUnknownNode
            ? "the device has no NUMA node"
            : "it is on the pipeline's NUMA node, " + std::to_string(pipeline.node);
  return best;
}

// Counts the RDMA buffers of a pipeline as packet memory of its node, which jobs cannot have.
// Buffers of pipelines that are tied to no node count on the first node.
void reserve_packet_memory(const config::Config& config, const PipelinePlan& pipeline,
                           Topology& topology) {
  const uint64_t bytes = (rdma_packet_bytes(config) + host::kHugepageBytes - 1) /
                         host::kHugepageBytes * host::kHugepageBytes;
  auto node = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                           [&](const NodePlan& each) { return each.node == pipeline.node; });
  if (node == topology.nodes.end()) node = topology.nodes.begin();
  if (node != topology.nodes.end()) node->packet_memory_bytes += bytes;
}

}  // namespace

Status choose_rdma_devices(const config::Config& config, const host::HostFacts& facts,
                           Topology& topology) {
  auto all = candidates(config, facts, topology.reasons);
  if (!all) return all.error();
  const bool may_cross = config.pipeline.numa == config::OnOffAuto::kOff;
  for (auto& pipeline : topology.pipelines) {
    std::string why;
    Candidate* const chosen = nearest(pipeline, may_cross, *all, why);
    if (chosen == nullptr) {
      return Error{ErrorCode::kInvalidArgument,
                   "data.port = rdma: pipeline " + std::to_string(pipeline.index) +
                       " is on NUMA node " + std::to_string(pipeline.node) +
                       ", where no RDMA device may be used; known devices: " + listed(facts.rdma) +
                       "; name cpus near them in pipeline.cores, a device of that node in "
                       "rdma.devices, or set pipeline.numa = off"};
    }
    PBOX_CHECK(chosen->device != nullptr);
    ++chosen->pipelines;
    pipeline.rdma_device = chosen->device->name;
    reserve_packet_memory(config, pipeline, topology);
    topology.reasons.push_back("pipeline " + std::to_string(pipeline.index) + ": RDMA device " +
                               pipeline.rdma_device + ", because " + why);
  }
  for (const auto& each : *all) {
    if (each.pipelines != 0) continue;
    topology.reasons.push_back("RDMA device " + each.device->name + " serves no pipeline");
  }
  return ok_status();
}

}  // namespace pbox::topology::steps
