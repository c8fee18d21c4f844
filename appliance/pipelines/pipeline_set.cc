#include "appliance/pipelines/pipeline_set.h"

#include "base/event.h"
#include "config/address.h"

namespace pbox::pipelines {

PipelineSet::PipelineSet(Descriptor reports)
    : reports_(std::move(reports)), prefaulter_(reports_.get()) {}

// The pipelines end first, because they use what the other members own.
PipelineSet::~PipelineSet() {
  threads_.clear();
}

Result<std::unique_ptr<PipelineSet>> PipelineSet::start(const topology::Topology& topology,
                                                        const config::Config& config,
                                                        const FlightRecorder* recorder) {
  auto reports = create_event();
  if (!reports) return reports.error();
  auto set = std::make_unique<PipelineSet>(std::move(*reports));
  const bool is_off = config.memory.hugepages == config::OnOffAuto::kOff;
  set->hugepages_ = is_off ? Hugepages::kNever : Hugepages::kIfFree;
  auto ports = Ports::start(topology, config);
  if (!ports) return ports.error();
  set->ports_ = std::move(*ports);
  for (const topology::PipelinePlan& plan : topology.pipelines) {
    auto port = set->ports_->open(plan, config);
    if (!port) return port.error();
    const auto flight = recorder != nullptr ? recorder->ring(plan.index) : std::span<std::byte>();
    auto thread = PipelineThread::create(plan, config, std::move(*port), flight);
    if (!thread) return thread.error();
    set->threads_.push_back(std::move(*thread));
  }
  for (auto& thread : set->threads_) {
    if (const Status status = thread->start(); !status) return status.error();
  }
  return set;
}

control::PipelineInfo PipelineSet::info(uint32_t pipeline) const {
  const PipelineThread& thread = *threads_[pipeline];
  const std::string& address = thread.plan().address;
  const nic::Capabilities& can = thread.capabilities();
  return {.address = config::is_wildcard_address(address) ? "" : address,
          .udp_port = thread.udp_port(),
          .receive_buffer_bytes = can.receive_buffer_bytes,
          .receive_slots = can.receive_slots,
          .mtu = can.mtu,
          .numa_node = thread.plan().node,
          .hugepages = hugepages_,
          .affinity = can.affinity,
          .queue = can.queue,
          .rss = can.rss};
}

void PipelineSet::execute(uint32_t pipeline, pipeline::Command command) {
  threads_[pipeline]->execute(command);
}

Status PipelineSet::install(uint32_t pipeline, pipeline::JobShard& shard) {
  free_retired();
  // A device reads results in place, so they must not change while it does. Only bsp guarantees
  // that: other models step the weights at any time.
  if (!shard.is_relaxed()) {
    const Status status = threads_[pipeline]->add_memory(shard.arena());
    if (!status) return status;
  }
  return control::PipelineHost::install(pipeline, shard);
}

Result<wire::QueuePairAddress> PipelineSet::connect(uint32_t pipeline, uint64_t owner,
                                                    const wire::QueuePairAddress& peer) {
  return threads_[pipeline]->connect(owner, peer);
}

Status PipelineSet::share_memory(boost::asio::io_context& context) {
  auto desk =
      LaneDesk::open(context, [this](uint64_t owner, const LaneSeat& seat,
                                     const nic::ReceivedHello& hello, Descriptor& connection) {
        return threads_[seat.pipeline]->attach(owner, seat.grant, hello, connection);
      });
  if (!desk) return desk.error();
  desk_ = std::move(*desk);
  return ok_status();
}

Result<control::PipelineHost::LaneOffer> PipelineSet::offer_lanes(uint64_t owner,
                                                                  std::vector<LaneSeat>&& lanes) {
  if (desk_ == nullptr) return control::PipelineHost::offer_lanes(owner, std::move(lanes));
  return desk_->offer(owner, std::move(lanes));
}

void PipelineSet::disconnect(uint64_t owner) {
  if (desk_ != nullptr) desk_->withdraw(owner);
  for (const auto& thread : threads_) thread->disconnect(owner);
  free_retired();
}

void PipelineSet::remove(uint32_t pipeline, std::unique_ptr<pipeline::JobShard> shard) {
  if (desk_ != nullptr) desk_->withdraw_memory(shard->arena());
  execute(pipeline, {.kind = pipeline::CommandKind::kRemove, .shard = shard.get()});
  retired_.push_back({pipeline, std::move(shard)});
  free_retired();
}

void PipelineSet::free_retired() {
  std::erase_if(retired_, [this](const Retired& retired) {
    return threads_[retired.pipeline]->remove_memory(retired.shard->arena());
  });
}

std::vector<std::string> PipelineSet::take_port_events() {
  free_retired();
  std::vector<std::string> lines;
  for (auto& thread : threads_) {
    while (auto event = thread->next_port_event()) {
      lines.push_back("pipeline " + std::to_string(thread->plan().index) + ": " + *event);
    }
  }
  return lines;
}

std::vector<admin::PipelineView> PipelineSet::views() const {
  std::vector<admin::PipelineView> views;
  for (const auto& thread : threads_) {
    const topology::PipelinePlan& plan = thread->plan();
    views.push_back({.index = plan.index,
                     .cpu = plan.pinned ? plan.cpu : -1,
                     .node = plan.node,
                     .address = plan.address,
                     .udp_port = thread->udp_port(),
                     .port = thread->capabilities().kind,
                     .nic = plan.nic,
                     .affinity = to_string(thread->capabilities().affinity),
                     .counters = &thread->counters(),
                     .port_counters = &thread->port_counters()});
  }
  return views;
}

}  // namespace pbox::pipelines
