#include "appliance/control/job.h"

#include <algorithm>
#include <numeric>

#include "appliance/control/sync_spec.h"
#include "appliance/placement/chunk_map.h"
#include "nic/wire/chunk_layout.h"

namespace pbox::appliance {
namespace {

// Where the session's tables have this one, which comes in once however many pipelines share it.
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

Job::Job(JobSpec spec, uint64_t created_ns, const std::vector<uint64_t>& loads_bytes)
    : spec_(std::move(spec)),
      members_(spec_.world_size),
      created_ns_(created_ns),
      priority_policy_(spec_.priority_policy),
      pipeline_bytes_(loads_bytes.size(), 0) {
  std::vector<uint32_t> chunk_bytes;
  for (const auto& chunk : cut_into_chunks(spec_)) {
    chunk_bytes.push_back(chunk.elements * wire::dtype_bytes(chunk.dtype));
  }
  if (spec_.parts == 1) {
    pipelines_.resize(loads_bytes.size());
    std::iota(pipelines_.begin(), pipelines_.end(), 0u);
    chunk_pipeline_ = placement::assign_chunks(chunk_bytes, loads_bytes);
  } else {  // there are more of them than pipelines, so a part needs but one
    const auto least = std::min_element(loads_bytes.begin(), loads_bytes.end());
    pipelines_ = {static_cast<uint32_t>(least - loads_bytes.begin())};
    chunk_pipeline_.assign(chunk_bytes.size(), 0);
  }
  for (size_t chunk = 0; chunk < chunk_bytes.size(); ++chunk) {
    pipeline_bytes_[pipelines_[chunk_pipeline_[chunk]]] += chunk_bytes[chunk];
  }
  footprints_.resize(loads_bytes.size(), 0);
  auto shards = shard_specs({});
  for (size_t index = 0; index < shards.size(); ++index) {
    shards[index].replicated = spec_.replicas > 0;
    footprints_[pipelines_[index]] = pipeline::shard_footprint(shards[index]);
  }
}

uint64_t Job::footprint() const {
  // What the relay keeps of results, so that the other box may be lost.
  const uint64_t relayed = spec_.relayed ? spec_.element_count() * sizeof(float) : 0;
  return std::accumulate(footprints_.begin(), footprints_.end(), relayed);
}

uint32_t Job::count(Member::State state) const {
  return static_cast<uint32_t>(
      std::count_if(members_.begin(), members_.end(),
                    [&](const Member& member) { return member.state == state; }));
}

bool Job::all_joined() const {
  bool some = false;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    some = some || ready(members_[rank]);
    if (!ready(members_[rank]) && !left_behind(rank, {0, 0})) return false;
  }
  return some;
}

bool Job::left_behind(uint32_t rank, std::pair<uint32_t, uint32_t> told) const {
  const Member* newest = nullptr;
  for (const Member& member : members_) {
    if (!member.resumes || member.state != Member::State::kJoined) continue;
    if (newest == nullptr || member.told() > newest->told()) newest = &member;
  }
  return newest != nullptr && newest->told() > told &&
         std::find(newest->absent.begin(), newest->absent.end(), rank) != newest->absent.end();
}

bool Job::has_majority() const {
  uint32_t members = 0, present = 0;
  bool lowest_is_present = false;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state == Member::State::kExcluded || left_behind(rank, {0, 0})) continue;
    const bool is_present = ready(members_[rank]);
    if (members == 0) lowest_is_present = is_present;
    ++members;
    present += is_present ? 1 : 0;
  }
  return 2 * present > members || (2 * present == members && lowest_is_present);
}

bool Job::recovering() const {
  return !running() && std::any_of(members_.begin(), members_.end(),
                                   [](const Member& member) { return member.resumes; });
}

std::string Job::ranks(Member::State state) const {
  constexpr size_t kShown = 8;
  std::string list;
  size_t found = 0;
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].state != state) continue;
    if (++found <= kShown) list += (found > 1 ? ", " : "") + std::to_string(rank);
  }
  if (found > kShown) list += " and " + std::to_string(found - kShown) + " more";
  return (found == 1 ? "rank " : "ranks ") + list;
}

void Job::describe(uint32_t rank, const PipelineHost& host, proto::Session& session) const {
  session.set_epoch(epoch_);
  session.set_generation(generation_);
  session.set_barrier_released(barrier_released);
  for (uint32_t other = 0; other < members_.size(); ++other) {
    if (members_[other].state == Member::State::kExcluded) session.add_absent_ranks(other);
  }
  session.set_fragment_bytes(fragment_bytes_);
  session.set_chunk_bytes(spec_.chunk_bytes);
  if (moments) {
    session.set_optimizer_snapshot(moments->number);
    session.set_optimizer_snapshot_steps(moments->steps);
  }
  if (restored) {
    session.set_restored_snapshot(restored->number);
    session.set_restored_steps(restored->steps);
  }
  session.set_chunk_pipeline(chunk_pipeline_.data(), chunk_pipeline_.size());
  std::vector<std::shared_ptr<const nic::RssTable>> tables;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    const PipelineInfo info = host.info(pipelines_[index]);
    auto* pipeline = session.add_pipelines();
    pipeline->set_spi(shards_[index]->sessions()[rank].spi);
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

std::string Job::placement() const {
  std::string text = std::to_string(chunk_pipeline_.size()) + " chunks of at most " +
                     std::to_string(spec_.chunk_bytes) + " bytes";
  for (size_t index = 0; index < pipelines_.size(); ++index) {
    const uint32_t pipeline = pipelines_[index];
    const auto chunks = std::count(chunk_pipeline_.begin(), chunk_pipeline_.end(), index);
    text += "; pipeline " + std::to_string(pipeline) + ": " + std::to_string(chunks) + " chunks, " +
            std::to_string(pipeline_bytes_[pipeline]) + " bytes a round, " +
            std::to_string(footprints_[pipeline]) + " of memory";
  }
  return text;
}

const char* Job::priority_source() const {
  switch (priority_policy_) {
    case wire::PriorityPolicy::kFifo: return "none";
    case wire::PriorityPolicy::kForwardOrder: return priorities_.empty() ? "registered" : "learned";
    case wire::PriorityPolicy::kExplicit: break;
  }
  return priorities_.empty() ? "registered" : "set";
}

JobView Job::view(uint64_t now_ns) const {
  JobView view;
  view.name = spec_.name;
  view.part_count = spec_.parts;
  view.parts = {spec_.part};
  view.state = running() ? "running" : recovering() ? "recovering" : "gathering";
  view.mode = spec_.mode == pipeline::Mode::kOptimize ? "optimize" : "aggregate";
  view.reduction = spec_.reduction == pipeline::Reduction::kMean ? "mean" : "sum";
  if (spec_.mode == pipeline::Mode::kOptimize) {
    constexpr const char* kNames[] = {"none", "sgd", "momentum", "nesterov", "adam", "adamw"};
    view.optimizer = kNames[static_cast<size_t>(spec_.optimizer.kind)];
  }
  view.priority_policy = wire::kPriorityPolicyNames[static_cast<size_t>(priority_policy_)];
  view.priority_source = priority_source();
  view.delivery = spec_.delivery == wire::Delivery::kPull ? "pull" : "broadcast";
  view.numerics = wire::kNumericsNames[static_cast<size_t>(spec_.numerics)];
  view.is_backup = spec_.is_backup;
  view.world_size = spec_.world_size;
  view.tensor_count = spec_.tensors.size();
  view.element_count = spec_.element_count();
  view.chunk_bytes = spec_.chunk_bytes;
  view.chunk_count = chunk_pipeline_.size();
  view.fragment_bytes = fragment_bytes_;
  view.memory_bytes = footprint();
  view.age_s = static_cast<double>(now_ns - created_ns_) / 1e9;
  view.workers.resize(members_.size());
  constexpr const char* kStates[] = {"absent", "joined", "lost", "left", "excluded"};
  uint64_t newest_ns = 0;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    WorkerView& worker = view.workers[rank];
    worker.rank = rank;
    worker.peer = members_[rank].peer;
    worker.state = kStates[static_cast<size_t>(members_[rank].state)];
    newest_ns = 0;
    for (const auto& shard : shards_) {
      const auto& session = shard->sessions()[rank];
      worker.bytes_received += session.bytes_received.get();
      worker.fragments_received += session.fragments_received.get();
      worker.duplicates += session.duplicates.get();
      worker.last_arrivals += session.last_arrivals.get();
      newest_ns = std::max(newest_ns, session.last_packet_ns.get());
    }
    if (newest_ns > 0) {
      worker.last_packet_age_s =
          now_ns > newest_ns ? static_cast<double>(now_ns - newest_ns) / 1e9 : 0;
    }
  }
  view.chunk_rounds = rounds_finished();
  if (relay && spec_.relayed) view.upstream = relay->view();
  view_backup(view);
  view_sync(view);
  view_stragglers(view);
  view_nonfinite(view, now_ns);
  return view;
}

void Job::view_backup(JobView& view) const {
  if (spec_.replicas == 0) return;
  BackupView& backup_view = view.backup.emplace();
  const CopyName name = copy();
  if (!running() || name.job.empty()) {
    backup_view.parts_without = 1;
    return;
  }
  backup_view.boxes = {name.box};
  backup_view.chunks_copied = relay->view().chunks_relayed;
  backup_view.chunks_in_flight = relay->view().chunks_in_flight;
}

void Job::view_sync(JobView& view) const {
  const wire::SyncSpec& sync = spec_.sync;
  view.sync = {.model = to_string(sync.model),
               .staleness = sync.staleness,
               .probability = sync.probability,
               .release = to_string(sync.release),
               .reads = to_string(sync.reads),
               .quorum = sync.quorum};
  if (wire::applies_on_arrival(sync.model)) {
    PullView& pulls = view.pulls.emplace();
    for (const auto& shard : shards_) {
      pulls.pulls += shard->pulls.get();
      pulls.delayed += shard->pulls_delayed.get();
      pulls.parked_s += static_cast<double>(shard->parked_ns.get()) / 1e9;
      pulls.lead_rounds = std::max(pulls.lead_rounds, shard->lead_rounds.get());
    }
  }
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const auto& reads = members_[rank].reads_by_staleness;
    auto& sums = view.reads_by_rounds_behind;
    sums.resize(std::max(sums.size(), reads.size()));
    for (size_t index = 0; index < reads.size(); ++index) sums[index] += reads[index];
    if (sync.model != wire::SyncModel::kDrop) continue;
    uint64_t dropped = 0;
    for (const auto& shard : shards_) dropped += shard->sessions()[rank].dropped.get();
    view.workers[rank].dropped_fragments = dropped;
  }
}

}  // namespace pbox::appliance
