#include "appliance/control/snapshot_coordinator.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "appliance/control/capacity.h"
#include "appliance/control/sync_spec.h"
#include "base/clock.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

using proto::CutProgress;
using Severity = RegistryEvent::Severity;

// A cut is dropped if the coordinating box, which asks several times a second, has not asked for
// this long.
constexpr uint64_t kCutKeptNs = 30 * kNanosPerSecond;
// The result of a run is shown while the job is here, and at least this long after its beginning.
constexpr uint64_t kRunKeptNs = 600 * kNanosPerSecond;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Result<CutProgress> progress_in(const Result<proto::BoxMessage>& answer) {
  if (!answer) return answer.error();
  if (!answer->has_cut_progress()) {
    return Error{ErrorCode::kMismatch,
                 "the box did not answer with the progress of a cut; run the same release on all "
                 "boxes"};
  }
  return answer->cut_progress();
}

Status has_snapshots(const JobSpec& spec) {
  if (spec.mode != pipeline::Mode::kOptimize) {
    return Error{ErrorCode::kInvalidArgument,
                 spec.title() +
                     " is in mode aggregate: its workers have the weights and the optimizer, and "
                     "save their own checkpoints"};
  }
  if (spec.relayed) {
    return Error{ErrorCode::kInvalidArgument,
                 spec.title() +
                     " has its weights and its optimizer at the upper box ([upstream]); take the "
                     "snapshot there"};
  }
  return ok_status();
}

Status can_be_cut(const Job& job) {
  if (!job.running()) {
    return Error{ErrorCode::kUnavailable, job.spec().title() + " does not run yet"};
  }
  return has_snapshots(job.spec());
}

Error no_store() {
  return {ErrorCode::kInvalidArgument,
          "the box keeps no snapshots; set [snapshots] directory on it"};
}

void fail_cut(CutProgress& progress, const std::string& why) {
  progress.set_state(CutProgress::FAILED);
  progress.set_message(why);
}

}  // namespace

Status SnapshotCoordinator::begin(const std::string& name, uint64_t timeout_ns) {
  if (store_ == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "this box keeps no snapshots; set [snapshots] directory on it"};
  }
  const std::vector<Job*> parts = context_.jobs.parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' on this box"};
  if (const Status status = has_snapshots(parts[0]->spec()); !status) return status;
  const auto before = runs_.find(name);
  if (before != runs_.end() && !before->second.run->is_over()) {
    return Error{ErrorCode::kUnavailable, "a snapshot of job '" + name + "' is being taken"};
  }
  const std::weak_ptr alive = context_.alive;
  const auto ask = [this, alive](const std::string& box, const proto::AskCut& question,
                                 const SnapshotRun::Answer& done) {
    if (alive.expired()) return;
    if (box.empty()) return done(take_cut(question));
    proto::WorkerMessage message;
    *message.mutable_ask_cut() = question;
    wire::state_versions(message);
    parts_.ask_box(box, message, [done](const auto& answer) { done(progress_in(answer)); });
  };
  // A box that is alone has no part map. It has every part of the job if the boxes of the racks
  // below it have cut the job into parts.
  const auto own_parts = static_cast<int>(parts[0]->spec().parts);
  const auto ask_part_map = [this, alive, name, own_parts](const PartDirectory::Answer& done) {
    if (alive.expired()) return;
    proto::AskPartMap question;
    question.set_job(name);
    parts_.ask(question, [done, own_parts](Result<proto::PartMap> map) {
      while (map && map->boxes_size() == 0 && map->parts_size() < own_parts) map->add_parts();
      done(map);
    });
  };
  const auto end = [this, alive, name] {
    if (!alive.expired()) on_end(*runs_.at(name).run);
  };
  auto run = std::make_shared<SnapshotRun>(*store_, ask, ask_part_map, utc_now, end, name,
                                           context_.now_ns + timeout_ns);
  runs_[name] = {run, context_.now_ns};
  // Two boxes may be asked for a snapshot of the same job at the same time. A claim that is granted
  // only after the run is over is given back, unless a newer run needs it.
  const auto claim = [this, alive, name,
                      weak = std::weak_ptr(run)](const std::function<void(const Status&)>& done) {
    if (alive.expired()) return;
    parts_.claim_snapshot(name, [this, alive, name, weak, done](const Status& claimed) {
      if (alive.expired()) return;
      const auto asking = weak.lock();
      const auto newest = runs_.find(name);
      const bool is_newest = newest == runs_.end() || newest->second.run == asking;
      if (claimed && is_newest && (!asking || asking->is_over())) parts_.release_snapshot(name);
      done(claimed);
    });
  };
  const Roster& members = parts[0]->members();
  run->begin(context_.options.box_name, members.incarnations(), claim, members.tenant());
  return ok_status();
}

std::optional<SnapshotView> SnapshotCoordinator::view(const std::string& name) const {
  const auto found = runs_.find(name);
  if (found == runs_.end()) return std::nullopt;
  return found->second.run->view();
}

Result<CutProgress> SnapshotCoordinator::take_cut(const proto::AskCut& question,
                                                  const Connection* asker) {
  const JobKey part{question.job(), question.part()};
  auto found = cuts_.find(part);
  if (question.over()) {
    if (found != cuts_.end() && found->second.number == question.snapshot()) end_cut(part);
    return CutProgress();
  }
  Job* job = context_.jobs.find(part);
  const bool is_known = found != cuts_.end() && found->second.number == question.snapshot() &&
                        found->second.round == question.round();
  if (job == nullptr && !is_known) {
    return Error{ErrorCode::kNotFound, "part " + std::to_string(question.part()) + " of job '" +
                                           question.job() +
                                           "' is no longer on this box; ask the box that has it"};
  }
  if (question.snapshot() == 0) return survey(*job);
  const bool is_busy = found != cuts_.end() && found->second.number != question.snapshot() &&
                       (found->second.progress.state() == CutProgress::CUTTING ||
                        found->second.progress.state() == CutProgress::WRITING);
  if (is_busy) {
    return Error{ErrorCode::kAlreadyExists,
                 "snapshot " + std::to_string(found->second.number) + " of job '" + question.job() +
                     "' is being taken here; try again when it is complete"};
  }
  if (!is_known) {
    const Status begun = begin_cut(*job, question);
    context_.audit({.kind = audit::Kind::kCut,
                    .job = question.job(),
                    .part = question.part(),
                    .snapshot = question.snapshot(),
                    .outcome = begun ? "begun" : "failed",
                    .reason = begun ? "" : begun.error().message},
                   asker);
    if (!begun) {
      CutProgress failed;
      fail_cut(failed, begun.error().message);
      return failed;
    }
    found = cuts_.find(part);
  }
  found->second.heard_ns = context_.now_ns;
  return found->second.progress;
}

uint64_t SnapshotCoordinator::cut_bytes(std::optional<std::string_view> tenant) const {
  TenantUses uses;
  add_use(uses);
  return memory_in(uses, tenant);
}

void SnapshotCoordinator::add_use(TenantUses& uses) const {
  for (const auto& [tenant, writing] : writing_bytes_) uses[tenant].memory_bytes += writing;
  for (const auto& [part, cut] : cuts_) {
    if (cut.bytes > 0) uses[std::string(wire::tenant_of(part.first))].memory_bytes += cut.bytes;
  }
}

Result<CutProgress> SnapshotCoordinator::survey(const Job& job) {
  if (const Status status = can_be_cut(job); !status) return status.error();
  if (store_ == nullptr) return no_store();
  const std::vector<uint32_t> rounds = job.shards().open_rounds(host_);
  CutProgress progress;
  progress.set_chunks(static_cast<uint32_t>(rounds.size()));
  progress.set_newest_round(
      *std::max_element(rounds.begin(), rounds.end(),
                        [](auto one, auto other) { return wire::round_distance(one, other) < 0; }));
  return progress;
}

Status SnapshotCoordinator::begin_cut(Job& job, const proto::AskCut& question) {
  if (const Status status = can_be_cut(job); !status) return status;
  if (store_ == nullptr) return no_store();  // the other box has made no survey
  if (question.round() == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "a cut of " + job.spec().title() + " before its first round has nothing to hold"};
  }
  const JobKey part = key_of(job.spec());
  end_cut(part);
  const uint64_t wanted = job.shards().cut_bytes();
  const Status has_room = check_copies(context_, owner_, job.spec().name,
                                       "a snapshot of " + job.spec().title(), wanted);
  if (!has_room) return has_room;
  auto cuts = job.shards().begin_cut(host_, question.round());
  if (!cuts) return cuts.error();
  PartCut& cut = cuts_[part];
  cut = {.number = question.snapshot(),
         .round = question.round(),
         .heard_ns = context_.now_ns,
         .bytes = wanted,
         .cuts = std::move(*cuts),
         .progress = {}};
  cut.progress.set_state(CutProgress::CUTTING);
  cut.progress.set_chunks(job.shards().chunk_count());
  cut.progress.set_steps_before(job.restored() ? job.restored()->steps : 0);
  continue_cut(job, cut);
  return ok_status();
}

// Each tick copies a few of the chunks that rest at the cut.
void SnapshotCoordinator::continue_cut(const Job& job, PartCut& cut) {
  if (cut.progress.state() != CutProgress::CUTTING) return;
  job.shards().continue_cut(host_, cut.cuts);
  uint32_t copied = 0, missed = 0;
  for (const auto& of_pipeline : cut.cuts) {
    copied += of_pipeline->copied();
    missed += of_pipeline->missed();
  }
  PBOX_CHECK(copied <= cut.progress.chunks());  // otherwise the file would mix two parts
  cut.progress.set_chunks_copied(copied);
  if (missed > 0) {
    job.shards().end_cut(host_);
    cut.cuts.clear();
    cut.bytes = 0;
    cut.progress.set_state(CutProgress::MISSED);
  } else if (copied == cut.progress.chunks()) {
    job.shards().end_cut(host_);
    cut.progress.set_state(CutProgress::WRITING);
    write_cut(job, cut);
  }
}

void SnapshotCoordinator::write_cut(const Job& job, PartCut& cut) {
  PBOX_CHECK(store_ != nullptr && !cut.cuts.empty());
  snapshot::Cuts cuts(cut.cuts.begin(), cut.cuts.end());
  cut.cuts.clear();
  const uint64_t bytes = std::exchange(cut.bytes, 0);
  const std::string tenant(wire::tenant_of(job.spec().name));
  writing_bytes_[tenant] += bytes;
  store_->write_part(cut.number, job.part_head(), std::move(cuts),
                     [this, alive = std::weak_ptr(context_.alive), part = key_of(job.spec()),
                      number = cut.number, round = cut.round, bytes, tenant](const auto& file) {
                       if (alive.expired()) return;
                       uint64_t& writing = writing_bytes_[tenant];
                       PBOX_CHECK(writing >= bytes);
                       writing -= bytes;
                       if (writing == 0) writing_bytes_.erase(tenant);
                       on_written(part, number, round, file);
                     });
}

void SnapshotCoordinator::on_written(const JobKey& part, uint64_t number, uint32_t round,
                                     const Result<snapshot::PartFile>& file) {
  const auto found = cuts_.find(part);
  const bool is_wanted =
      found != cuts_.end() && found->second.number == number && found->second.round == round;
  if (!is_wanted) return;
  CutProgress& progress = found->second.progress;
  if (!file) return fail_cut(progress, file.error().message);
  progress.set_state(CutProgress::WRITTEN);
  progress.set_file(file->name);
  progress.set_bytes(file->bytes);
  progress.set_crc32c(file->crc32c);
}

// Drops the cut: the pipelines stop copying. A file that is being written is completed, but not
// used.
void SnapshotCoordinator::end_cut(const JobKey& part) {
  const auto found = cuts_.find(part);
  if (found == cuts_.end()) return;
  const Job* job = context_.jobs.find(part);
  if (job != nullptr && found->second.progress.state() == CutProgress::CUTTING) {
    job->shards().end_cut(host_);
  }
  cuts_.erase(found);
}

void SnapshotCoordinator::on_closed(const JobKey& part) {
  reads_.erase(part);
  const auto found = cuts_.find(part);
  if (found == cuts_.end() || found->second.progress.state() != CutProgress::CUTTING) return;
  found->second.cuts.clear();
  found->second.bytes = 0;
  found->second.progress.set_state(
      CutProgress::MISSED);  // when the part runs again, another is taken
}

void SnapshotCoordinator::on_removed(const JobKey& part) {
  due_ns_.erase(part);
  const auto found = cuts_.find(part);
  if (found == cuts_.end() || found->second.progress.state() != CutProgress::MISSED) return;
  fail_cut(found->second.progress, "the job has ended here, or has moved to another box");
}

void SnapshotCoordinator::on_tick() {
  tick_cuts();
  tick_reads();
  tick_runs();
  begin_due();
}

void SnapshotCoordinator::forgive(uint64_t gap_ns) {
  for (auto& [part, cut] : cuts_) cut.heard_ns += gap_ns;
  for (auto& [part, read] : reads_) read.due_ns += read.due_ns == 0 ? 0 : gap_ns;
}

void SnapshotCoordinator::tick_cuts() {
  std::vector<JobKey> dropped;
  for (auto& [part, cut] : cuts_) {
    const Job* job = context_.jobs.find(part);
    if (context_.now_ns - cut.heard_ns > kCutKeptNs) {
      dropped.push_back(part);
    } else if (job != nullptr) {
      continue_cut(*job, cut);
    }
  }
  for (const JobKey& part : dropped) end_cut(part);
}

void SnapshotCoordinator::tick_runs() {
  for (auto entry = runs_.begin(); entry != runs_.end();) {
    const Run& run = entry->second;
    run.run->on_tick(context_.now_ns);
    const bool is_old = run.run->is_over() && context_.now_ns - run.begun_ns > kRunKeptNs;
    entry = is_old && !context_.jobs.has_job(entry->first) ? runs_.erase(entry) : std::next(entry);
  }
}

// Begins the regular snapshots ([snapshots] every_s) of jobs whose first part is here. The first is
// due one interval after the start.
void SnapshotCoordinator::begin_due() {
  const uint64_t interval_ns = context_.options.snapshot_every_ns;
  if (interval_ns == 0 || store_ == nullptr) return;
  std::vector<std::string> due;
  for (const auto& [part, job] : context_.jobs) {
    if (part.second != 0 || !can_be_cut(*job)) continue;
    uint64_t& due_ns = due_ns_[part];
    if (due_ns == 0) due_ns = context_.now_ns + interval_ns;
    if (context_.now_ns < due_ns) continue;
    due_ns = context_.now_ns + interval_ns;
    due.push_back(part.first);
  }
  for (const std::string& name : due) {
    const Status begun = begin(name, interval_ns);
    if (!begun) context_.note(Severity::kWarning, "snapshot_failed", begun.error().message);
  }
}

void SnapshotCoordinator::on_end(const SnapshotRun& run) {
  const SnapshotView view = run.view();
  parts_.release_snapshot(view.job);
  if (run.is_done()) {
    ++context_.totals.snapshots_taken;
    context_.note(Severity::kInfo, "snapshot_taken",
                  "job '" + view.job + "': snapshot " + std::to_string(view.number) + ", " +
                      std::to_string(view.steps) + " steps, " + std::to_string(view.bytes) +
                      " bytes in " + std::to_string(view.parts) + " parts",
                  view.job);
    return;
  }
  ++context_.totals.snapshots_failed;
  context_.note(Severity::kWarning, "snapshot_failed", "job '" + view.job + "': " + view.error,
                view.job);
}

}  // namespace pbox::control
