#include "appliance/control/job.h"

#include <algorithm>
#include <numeric>

#include "appliance/control/part_memory.h"

namespace pbox::control {
namespace {

// Returns the table's index in the session, and adds the table if it is not there yet. Pipelines
// that share a table share one entry.
uint32_t table_index(const std::shared_ptr<const nic::RssTable>& table,
                     std::vector<std::shared_ptr<const nic::RssTable>>& sent,
                     proto::Session& session) {
  const auto found = std::find(sent.begin(), sent.end(), table);
  if (found != sent.end()) return static_cast<uint32_t>(found - sent.begin());
  auto& message = *session.add_rss_tables();
  message.set_key(table->key.data(), table->key.size());
  message.mutable_queues()->Add(table->queues.begin(), table->queues.end());
  sent.push_back(table);
  return static_cast<uint32_t>(sent.size() - 1);
}

}  // namespace

Job::Job(JobSpec spec, uint64_t created_ns, const Placement& placement, JobTimeouts timeouts)
    : spec_(std::move(spec)),
      members_(spec_.world_size),
      shards_(spec_, placement),
      timeouts_(timeouts),
      control_bytes_(control_bytes(spec_)),
      gather_times_{.begun_ns = created_ns},
      priority_policy_(spec_.priority_policy) {}

void Job::on_rank_resumes(uint64_t now_ns) {
  if (gather_times_.resumed_ns == 0) gather_times_.resumed_ns = now_ns;
}

void Job::forgive(uint64_t gap_ns, uint64_t now_ns) {
  const auto shift = [&](uint64_t& since_ns) { since_ns = std::min(now_ns, since_ns + gap_ns); };
  for (Member& member : members_) {
    if (member.state == Member::State::kLost) shift(member.lost_ns);
  }
  if (running()) return;
  shift(gather_times_.begun_ns);
  if (gather_times_.resumed_ns != 0) shift(gather_times_.resumed_ns);
}

void Job::begin_again(uint64_t now_ns) {
  PBOX_CHECK(!running());  // close() comes first: the pipelines would still use the shards
  gather_times_ = {.begun_ns = now_ns};
  barrier_released_ = 0;
  restored_.reset();
  optimizer_state_.reset();
  relay_.reset();
  starts_.clear();
}

uint64_t Job::footprint() const {
  return std::accumulate(shards_.footprints().begin(), shards_.footprints().end(), control_bytes_);
}

std::string Job::placement() const {
  std::string text = std::to_string(shards_.chunk_count()) + " chunks of at most " +
                     std::to_string(spec_.chunk_bytes) + " bytes";
  const auto& owners = shards_.chunk_pipeline();
  for (size_t index = 0; index < shards_.pipelines().size(); ++index) {
    const uint32_t pipeline = shards_.pipelines()[index];
    const auto chunks = std::count(owners.begin(), owners.end(), index);
    text += "; pipeline " + std::to_string(pipeline) + ": " + std::to_string(chunks) + " chunks, " +
            std::to_string(shards_.bytes_on(pipeline)) + " bytes a round, " +
            std::to_string(footprint_on(pipeline)) + " of memory";
  }
  return text;
}

void Job::close(PipelineHost& host, SpiAllocator& spis) {
  relay_.reset();  // before the memory that it sends from
  shards_.close(host, spis);
  trace_.clear();
}

void Job::attach_relay(std::unique_ptr<Relay> relay, CopyName copy) {
  PBOX_CHECK(relay_ == nullptr && !running());  // its lanes are set up when the shards are opened
  relay_ = std::move(relay);
  copy_ = std::move(copy);
}

Status Job::admit(PipelineHost& host, SpiAllocator& spis, const SessionMaker& sessions,
                  uint32_t rank) {
  const bool is_new = members_[rank].state == Member::State::kExcluded;
  const uint32_t generation = generation_ + (is_new ? 1 : 0);
  const auto seal = [&](uint32_t pipeline, uint32_t spi) {
    return sessions.make(spec_, epoch_, rank, members_[rank], pipeline, spi);
  };
  Status admitted = shards_.admit(host, spis, rank, generation, members_[rank], seal);
  if (admitted) generation_ = generation;
  return admitted;
}

void Job::exclude(PipelineHost& host, SpiAllocator& spis, uint32_t rank) {
  shards_.exclude(host, spis, rank, ++generation_);
}

bool Job::follow_learning_rate(PipelineHost& host, const std::function<void()>& confirmed) {
  const auto setter = members_.learning_rate_setter();
  if (!setter) return false;
  const float learning_rate = members_[*setter].learning_rate;
  if (!spec_.relayed || spec_.mode != pipeline::Mode::kOptimize || !running()) {
    shards_.set_learning_rate(host, learning_rate);
    return false;
  }
  relay_->set_learning_rate(learning_rate, confirmed);
  return true;
}

bool Job::has_restarted_optimizer() const {
  return spec_.mode == pipeline::Mode::kOptimize &&
         optimizer::state_floats_per_element(spec_.optimizer.kind) > 0 &&
         std::any_of(starts_.begin(), starts_.end(),
                     [](const ChunkStart& start) { return start.is_copied(); });
}

void Job::set_priorities(PipelineHost& host, wire::PriorityPolicy policy,
                         std::vector<int32_t> by_tensor) {
  priority_policy_ = policy;
  priorities_ = std::move(by_tensor);
  proto::SetPriorities& told = priorities_set_.emplace();
  told.set_policy(static_cast<uint32_t>(policy));
  told.mutable_by_tensor()->Add(priorities_.begin(), priorities_.end());
  if (!running()) return;  // the part starts with these priorities
  shards_.set_priorities(host, chunk_priorities());
  if (relay_) relay_->set_priorities(chunk_priorities());
}

std::optional<uint64_t> Job::release_barrier() {
  const uint64_t reached = members_.barrier_reached();
  if (reached == UINT64_MAX || reached <= barrier_released_) return std::nullopt;
  barrier_released_ = reached;
  return reached;
}

void Job::describe(uint32_t rank, const PipelineHost& host, proto::Session& session) const {
  session.set_epoch(epoch_);
  session.set_generation(generation_);
  session.set_barrier_released(barrier_released_);
  for (uint32_t other = 0; other < members_.size(); ++other) {
    if (members_[other].state == Member::State::kExcluded) session.add_absent_ranks(other);
  }
  session.set_fragment_bytes(fragment_bytes_);
  session.set_chunk_bytes(spec_.chunk_bytes);
  session.set_workers(spec_.relayed ? relay_->view().workers : members_.workers());
  if (optimizer_state_) {
    session.set_optimizer_snapshot(optimizer_state_->number);
    session.set_optimizer_snapshot_steps(optimizer_state_->steps);
  }
  if (restored_) {
    session.set_restored_snapshot(restored_->number);
    session.set_restored_steps(restored_->steps);
  }
  const auto& owners = shards_.chunk_pipeline();
  session.set_chunk_pipeline(owners.data(), owners.size());
  std::vector<std::shared_ptr<const nic::RssTable>> tables;
  for (uint32_t index = 0; index < shards_.all().size(); ++index) {
    const PipelineInfo info = host.info(shards_.pipelines()[index]);
    auto* pipeline = session.add_pipelines();
    pipeline->set_spi(shards_.all()[index]->sessions()[rank].spi);
    pipeline->set_udp_port(info.udp_port);
    pipeline->set_address(info.address);
    pipeline->set_affinity(static_cast<uint32_t>(info.affinity));
    pipeline->set_queue(info.queue);
    if (info.affinity == nic::QueueAffinity::kRssHash) {
      PBOX_CHECK(info.rss != nullptr);
      pipeline->set_rss_table(table_index(info.rss, tables, session));
    }
  }
}

}  // namespace pbox::control
