// The operator, who changes the consistency models of running jobs and asks for snapshots of them.
#include "tests/sim/violation.h"
#include "tests/sim/world.h"

namespace pbox::sim {
namespace {

// Returns whether a running job's model may change in this way. This is the product's rule,
// implemented a second time.
bool may_become(const wire::SyncSpec& former, const wire::SyncSpec& next) {
  const auto is_free = [](const wire::SyncSpec& sync) {
    return wire::applies_on_arrival(sync.model) && sync.reads != wire::Reads::kCached;
  };
  const bool both_drop =
      former.model == wire::SyncModel::kDrop && next.model == wire::SyncModel::kDrop;
  return former == next || both_drop || (is_free(former) && is_free(next));
}

}  // namespace

// Changes models on one box. Each part of the job there must then have the new ones, or all must
// have refused them for the right reason.
void World::change_model(const ModelChange& change) {
  const JobModel& named = *jobs_[change.job];
  Box& box = *boxes_[cluster_.owner(named.options).value_or(named.options.box)];
  if (!box.up()) return;
  const std::string tensors = change.tensor ? std::to_string(*change.tensor) + ".*" : "";
  std::vector<std::pair<JobModel*, std::vector<wire::SyncSpec>>> former;
  bool is_possible = true, is_named = false;
  for (const auto& part : jobs_) {
    if (part->name != named.name || !box.has_part(part->name, part->options.part)) continue;
    JobModel& job = *part;
    former.emplace_back(&job, job.models);
    job.former_models = job.models;
    for (uint32_t tensor = 0; tensor < job.models.size(); ++tensor) {
      if (change.tensor.value_or(tensor) != tensor) continue;
      is_named = true;
      is_possible = is_possible && may_become(job.models[tensor], change.sync);
      job.models[tensor] = change.sync;
    }
  }
  const Status set = box.set_sync(named.name, {.tensors = tensors, .sync = change.sync});
  const bool is_refused = !set && set.error().code == ErrorCode::kInvalidArgument;
  counts_.add(set ? Fault::kModelChanged : Fault::kModelRefused, set || is_refused ? 1 : 0);
  require(!set || (is_possible && is_named),
          [&] { return named.title + ": a running job was given a model that it cannot have"; });
  require(!is_refused || !is_possible || !is_named, [&] {
    return named.title + ": a model that the job can have is refused: " + set.error().message;
  });
  for (auto& [job, models] : former) {
    if (!set) job->models = models;
    job->former_models.clear();
    for (uint32_t tensor = 0; set && tensor < models.size(); ++tensor) {
      job->reads.note_model(tensor, job->models[tensor]);
    }
  }
}

// Asks a box for a snapshot of a job. The box must not begin one unless the job is in mode
// optimize, and must not call the request invalid if it is.
void World::ask_for_snapshot(const SnapshotCall& call) {
  Box& box = *boxes_[call.box];
  if (!box.up()) return;
  const JobModel& job = *jobs_[call.job];
  const Status begun = box.begin_snapshot(job.name, call.timeout_ns);
  const bool is_possible = job.options.mode == pipeline::Mode::kOptimize;
  const ErrorCode error = begun ? ErrorCode::kOk : begun.error().code;
  require(!begun || is_possible,
          [&] { return job.title + " has no snapshots, but one was begun"; });
  require(!is_possible || error != ErrorCode::kInvalidArgument,
          [&] { return job.title + ": a snapshot was refused: " + begun.error().message; });
}

}  // namespace pbox::sim
