// The view of a part for the admin side.
#include <algorithm>

#include "appliance/control/job.h"
#include "appliance/control/sync_spec.h"
#include "base/check.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

void view_workers(const Job& job, JobView& view, uint64_t now_ns) {
  constexpr const char* kStates[] = {"absent", "joined", "lost", "left", "excluded"};
  view.workers.resize(job.members().size());
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    WorkerView& worker = view.workers[rank];
    worker.rank = rank;
    worker.peer = job.members()[rank].peer;
    const Member& member = job.members()[rank];
    const auto state = member.has_left ? Member::State::kLeft : member.state;
    PBOX_DCHECK(static_cast<size_t>(state) < std::size(kStates));
    worker.state = kStates[static_cast<size_t>(state)];
    uint64_t newest_ns = 0;
    for (const auto& shard : job.shards().all()) {
      PBOX_DCHECK(rank < shard->sessions().size());
      const auto& session = shard->sessions()[rank];
      worker.bytes_received += session.bytes_received.get();
      worker.fragments_received += session.fragments_received.get();
      worker.duplicates += session.duplicates.get();
      worker.last_arrivals += session.last_arrivals.get();
      newest_ns = std::max(newest_ns, session.last_packet_ns.get());
    }
    if (newest_ns == 0) continue;
    worker.last_packet_age_s =
        now_ns > newest_ns ? static_cast<double>(now_ns - newest_ns) / 1e9 : 0;
  }
}

void view_backup(const Job& job, JobView& view) {
  if (job.spec().replicas == 0) return;
  BackupView& backup = view.backup.emplace();
  const CopyName name = job.copy();
  if (!job.running() || name.job.empty()) {
    backup.parts_without = 1;
    return;
  }
  PBOX_CHECK(job.relay() != nullptr);
  backup.boxes = {name.box};
  backup.chunks_copied = job.relay()->view().chunks_relayed;
  backup.chunks_in_flight = job.relay()->view().chunks_in_flight;
}

void view_sync(const Job& job, JobView& view, uint64_t now_ns) {
  const wire::SyncSpec& sync = job.shards().models().in_force().job;
  view.sync = {.text = wire::sync_text(sync),
               .model = to_string(sync.model),
               .staleness = sync.staleness,
               .probability = sync.probability,
               .release = to_string(sync.release),
               .reads = to_string(sync.reads),
               .quorum = sync.quorum,
               .grace_ms = sync.grace_ms,
               .counts_late = sync.counts_late};
  for (size_t index = 0; index < job.spec().tensors.size(); ++index) {
    const wire::SyncSpec& own = job.shards().models().in_force().by_tensor[index];
    if (own != sync) view.sync.by_tensor[job.spec().tensors[index].name] = wire::sync_text(own);
  }
  if (auto control = job.shards().models().view(now_ns)) view.sync.control = {std::move(*control)};
  if (job.spec().applies_on_arrival()) {
    PullView& pulls = view.pulls.emplace();
    for (const auto& shard : job.shards().all()) {
      pulls.pulls += shard->pulls.get();
      pulls.delayed += shard->pulls_delayed.get();
      pulls.parked_s += static_cast<double>(shard->parked_ns.get()) / 1e9;
      pulls.lead_rounds = std::max(pulls.lead_rounds, shard->lead_rounds.get());
    }
  }
  if (sync.model == wire::SyncModel::kDrop) {
    GraceView& grace = view.grace.emplace();
    const bool is_auto = sync.grace_ms == wire::kGraceAuto;
    for (const auto& shard : job.shards().all()) {
      const uint64_t ns =
          is_auto ? shard->grace.auto_ns() : uint64_t{sync.grace_ms} * kNanosPerMilli;
      grace.is_unbounded = grace.is_unbounded || (is_auto && ns == 0);
      grace.grace_s = std::max(grace.grace_s, static_cast<double>(ns) / 1e9);
      grace.rounds_cut += shard->rounds_cut.get();
    }
  }
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const auto& reads = job.members()[rank].reads_by_staleness;
    auto& sums = view.reads_by_rounds_behind;
    sums.resize(std::max(sums.size(), reads.size()));
    for (size_t index = 0; index < reads.size(); ++index) sums[index] += reads[index];
    if (sync.model != wire::SyncModel::kDrop) continue;
    PBOX_DCHECK(rank < view.workers.size());
    uint64_t dropped = 0, missed = 0;
    for (const auto& shard : job.shards().all()) {
      dropped += shard->sessions()[rank].dropped.get();
      missed += shard->sessions()[rank].missed.get();
    }
    view.workers[rank].dropped_fragments = dropped;
    view.workers[rank].missed_rounds = missed;
  }
}

// Returns JobView::priority_source. `are_given`: the priorities are not those with which the
// tensors were registered.
const char* priority_source(wire::PriorityPolicy policy, bool are_given) {
  switch (policy) {
    case wire::PriorityPolicy::kFifo: return "none";
    case wire::PriorityPolicy::kForwardOrder: return are_given ? "learned" : "registered";
    case wire::PriorityPolicy::kExplicit: break;
  }
  return are_given ? "set" : "registered";
}

}  // namespace

JobView Job::view(uint64_t now_ns) const {
  JobView view;
  view.name = spec_.name;
  view.part_count = spec_.parts;
  view.parts = {spec_.part};
  view.state = running() ? "running" : recovering() ? "recovering" : "gathering";
  view.mode = mode_name(spec_);
  view.reduction = spec_.reduction == pipeline::Reduction::kSum ? "sum"
                   : spec_.weighted                             ? "weighted mean"
                                                                : "mean";
  if (spec_.mode == pipeline::Mode::kOptimize) {
    view.optimizer = optimizer::kOptimizerKindNames[static_cast<size_t>(spec_.optimizer.kind)];
  }
  view.priority_policy = wire::kPriorityPolicyNames[static_cast<size_t>(priority_policy_)];
  view.priority_source = priority_source(priority_policy_, !priorities_.empty());
  view.delivery = wire::kDeliveryNames[static_cast<size_t>(spec_.delivery)];
  view.numerics = wire::kNumericsNames[static_cast<size_t>(spec_.numerics)];
  view.guard = wire::kGuardNames[static_cast<size_t>(spec_.guard.policy)];
  view.guard_max_abs = spec_.guard.max_abs;
  view.is_backup = spec_.is_backup;
  view.world_size = spec_.world_size;
  view.min_world_size = spec_.min_world_size;
  view.tensor_count = spec_.tensors.size();
  view.element_count = spec_.element_count();
  view.chunk_bytes = spec_.chunk_bytes;
  view.chunk_count = shards_.chunk_count();
  view.fragment_bytes = fragment_bytes_;
  view.memory_bytes = footprint();
  view.age_s = static_cast<double>(now_ns - gather_times_.begun_ns) / 1e9;
  view.chunk_rounds = shards_.rounds_finished();
  if (relay_ && spec_.relayed) view.upstream = relay_->view();
  view_workers(*this, view, now_ns);
  view_backup(*this, view);
  view_sync(*this, view, now_ns);
  view_stragglers(view);
  view_values(view, now_ns);
  return view;
}

}  // namespace pbox::control
