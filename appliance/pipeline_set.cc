#include "appliance/pipeline_set.h"

#include "config/address.h"

namespace pbox::appliance {

Result<std::unique_ptr<PipelineSet>> PipelineSet::start(const Topology& topology,
                                                        const config::Config& config) {
  auto set = std::make_unique<PipelineSet>();
  const bool is_off = config.memory.hugepages == config::OnOffAuto::kOff;
  set->hugepages_ = is_off ? Hugepages::kNever : Hugepages::kIfFree;
  for (const PipelinePlan& plan : topology.pipelines) {
    auto thread = PipelineThread::open(plan, config);
    if (!thread) return thread.error();
    set->threads_.push_back(std::move(*thread));
  }
  for (auto& thread : set->threads_) {
    if (const Status status = thread->start(); !status) return status.error();
  }
  return set;
}

PipelineInfo PipelineSet::info(uint32_t pipeline) const {
  const PipelineThread& thread = *threads_[pipeline];
  const std::string& address = thread.plan().address;
  return {.address = config::is_wildcard_address(address) ? "" : address,
          .udp_port = thread.udp_port(),
          .receive_buffer_bytes = thread.capabilities().receive_buffer_bytes,
          .mtu = thread.capabilities().mtu,
          .numa_node = thread.plan().node,
          .hugepages = hugepages_};
}

void PipelineSet::execute(uint32_t pipeline, pipeline::Command command) {
  threads_[pipeline]->execute(command);
}

std::vector<PipelineView> PipelineSet::views() const {
  std::vector<PipelineView> views;
  for (const auto& thread : threads_) {
    const PipelinePlan& plan = thread->plan();
    views.push_back({.index = plan.index,
                     .cpu = plan.pinned ? plan.cpu : -1,
                     .node = plan.node,
                     .address = plan.address,
                     .udp_port = thread->udp_port(),
                     .counters = &thread->counters(),
                     .port_counters = &thread->port_counters()});
  }
  return views;
}

}  // namespace pbox::appliance
