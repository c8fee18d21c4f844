// Snapshots: cuts that this box takes of the parts it has, for itself or another; and what a job
// begins with.
#include <algorithm>
#include <ctime>

#include "appliance/control/job_registry.h"
#include "appliance/control/sync_spec.h"
#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

using proto::CutProgress;
using Severity = RegistryEvent::Severity;

// Whoever takes the snapshot asks ten times a second; if it is gone, so is the cut.
constexpr uint64_t kCutKeptNs = 30 * kNanosPerSecond;
// A disk that does not answer keeps a job waiting for so long, which could go on without, and whose
// ranks wait for a minute unless they are told otherwise.
constexpr uint64_t kMomentsPatienceNs = 30 * kNanosPerSecond;
// How it ended is told for so long.
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
    return Error{ErrorCode::kMismatch, "it answers something else; is it of this release?"};
  }
  return answer->cut_progress();
}

Status has_cuts(const JobSpec& spec) {
  if (spec.mode != pipeline::Mode::kOptimize) {
    return Error{ErrorCode::kInvalidArgument,
                 spec.title() +
                     " is in mode aggregate: its weights and optimizer are its workers' "
                     "own, and so are their checkpoints"};
  }
  if (spec.sync.model != wire::SyncModel::kBsp) {
    return Error{ErrorCode::kInvalidArgument,
                 spec.title() + " is of sync.model " + to_string(spec.sync.model) +
                     ": without rounds that wait for all there is no cut; only bsp has them"};
  }
  return ok_status();
}

Status may_be_cut(const Job& job) {
  if (!job.running()) {
    return Error{ErrorCode::kUnavailable, job.spec().title() + " does not run yet"};
  }
  return has_cuts(job.spec());
}

}  // namespace

Status JobRegistry::begin_snapshot(const std::string& name, uint64_t timeout_ns, uint64_t now_ns) {
  if (shelf_ == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "this box keeps no snapshots: name a folder in [snapshots] directory"};
  }
  const std::vector<Job*> parts = parts_of(name);
  if (parts.empty()) return Error{ErrorCode::kNotFound, "no job '" + name + "' here"};
  if (const Status may = has_cuts(parts[0]->spec()); !may) return may;
  const auto before = snapshots_.find(name);
  if (before != snapshots_.end() && !before->second.run->is_over()) {
    return Error{ErrorCode::kUnavailable, "a snapshot of job '" + name + "' is being taken"};
  }
  const auto ask = [this, alive = alive_](const std::string& box, const proto::AskCut& question,
                                          const SnapshotRun::Answer& done) {
    if (!*alive) return;
    if (box.empty()) return done(take_cut(question));
    proto::WorkerMessage message;
    *message.mutable_ask_cut() = question;
    parts_.ask_box(box, message, [done](const auto& answer) { done(progress_in(answer)); });
  };
  const auto ask_part_map = [this, alive = alive_, name](const PartDirectory::Answer& done) {
    if (!*alive) return;
    proto::AskPartMap question;
    question.set_protocol_version(wire::kControlProtocolVersion);
    question.set_job(name);
    parts_.ask(question, done);
  };
  const auto on_end = [this, alive = alive_, name] {
    if (*alive) tell_end(*snapshots_.at(name).run);
  };
  auto run = std::make_shared<SnapshotRun>(*shelf_, ask, ask_part_map, utc_now, on_end, name,
                                           now_ns + timeout_ns);
  snapshots_[name] = {run, now_ns};
  run->begin(options_.box_name, parts[0]->incarnations());
  return ok_status();
}

std::optional<SnapshotView> JobRegistry::snapshot(const std::string& name) const {
  const auto found = snapshots_.find(name);
  if (found == snapshots_.end()) return std::nullopt;
  return found->second.run->view();
}

void JobRegistry::on_ask_cut(ConnectionId id, const proto::AskCut& question) {
  if (const Status speaks = check_version(question.protocol_version(), "another box"); !speaks) {
    return refuse(id, speaks.error());
  }
  auto progress = take_cut(question);
  if (!progress) return refuse(id, progress.error());
  proto::BoxMessage answer;
  *answer.mutable_cut_progress() = std::move(*progress);
  send(id, std::move(answer));
}

Result<CutProgress> JobRegistry::take_cut(const proto::AskCut& question) {
  const JobKey part{question.job(), question.part()};
  if (question.over()) {
    const auto found = cuts_.find(part);
    if (found != cuts_.end() && found->second.number == question.snapshot()) end_cut(part);
    return CutProgress();
  }
  const auto job = jobs_.find(part);
  auto found = cuts_.find(part);
  const bool is_known = found != cuts_.end() && found->second.number == question.snapshot() &&
                        found->second.round == question.round();
  if (job == jobs_.end() && !is_known) {
    return Error{ErrorCode::kNotFound, "part " + std::to_string(question.part()) + " of job '" +
                                           question.job() +
                                           "' is not here any more; try again where it is"};
  }
  if (question.snapshot() == 0) return survey(*job->second);
  if (!is_known) {
    if (const Status begun = begin_cut(*job->second, question); !begun) {
      CutProgress failed;
      failed.set_state(CutProgress::FAILED);
      failed.set_message(begun.error().message);
      return failed;
    }
    found = cuts_.find(part);
  }
  found->second.heard_ns = now_ns_;
  return found->second.progress;
}

// Of a part that runs here: how far it is.
Result<CutProgress> JobRegistry::survey(const Job& job) {
  if (const Status may = may_be_cut(job); !may) return may.error();
  if (shelf_ == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 "it keeps no snapshots: name a folder in its [snapshots] directory"};
  }
  const std::vector<uint32_t> rounds = job.open_rounds(host_);
  CutProgress progress;
  progress.set_chunks(static_cast<uint32_t>(rounds.size()));
  progress.set_newest_round(
      *std::max_element(rounds.begin(), rounds.end(),
                        [](auto one, auto other) { return wire::round_distance(one, other) < 0; }));
  return progress;
}

Status JobRegistry::begin_cut(Job& job, const proto::AskCut& question) {
  if (const Status may = may_be_cut(job); !may) return may;
  end_cut(key(job.spec()));
  const uint64_t wanted = job.cut_bytes();
  const uint64_t taken = memory_taken_bytes();
  if (taken > options_.job_memory_bytes || wanted > options_.job_memory_bytes - taken) {
    return Error{ErrorCode::kResourceExhausted,
                 "a snapshot of " + job.spec().title() + " needs " + std::to_string(wanted) +
                     " bytes while it is written; jobs hold " + std::to_string(taken) + " of the " +
                     std::to_string(options_.job_memory_bytes) +
                     " that they may take ([memory] job_share)"};
  }
  auto cuts = job.begin_cut(host_, question.round());
  if (!cuts) return cuts.error();
  PartCut& cut = cuts_[key(job.spec())];
  cut = {.number = question.snapshot(),
         .round = question.round(),
         .heard_ns = now_ns_,
         .bytes = wanted,
         .cuts = std::move(*cuts),
         .progress = {}};
  cut.progress.set_state(CutProgress::CUTTING);
  cut.progress.set_chunks(job.chunk_count());
  cut.progress.set_steps_before(job.restored ? job.restored->steps : 0);
  look_at_cut(job, cut);
  return ok_status();
}

// Chunks that rest at the cut are copied a few at a time, in each tick.
void JobRegistry::look_at_cut(Job& job, PartCut& cut) {
  if (cut.progress.state() != CutProgress::CUTTING) return;
  job.look_at_cut(host_, cut.cuts);
  uint32_t copied = 0, missed = 0;
  for (const auto& of_pipeline : cut.cuts) {
    copied += of_pipeline->copied();
    missed += of_pipeline->missed();
  }
  cut.progress.set_chunks_copied(copied);
  if (missed > 0) {
    job.end_cut(host_);
    cut.cuts.clear();
    cut.bytes = 0;
    cut.progress.set_state(CutProgress::MISSED);
  } else if (copied == cut.progress.chunks()) {
    job.end_cut(host_);
    cut.progress.set_state(CutProgress::WRITING);
    write_cut(job, cut);
  }
}

void JobRegistry::write_cut(const Job& job, PartCut& cut) {
  snapshot::Cuts cuts(cut.cuts.begin(), cut.cuts.end());
  cut.cuts.clear();
  shelf_->write_part(cut.number, job.part_head(), std::move(cuts),
                     [this, alive = alive_, part = key(job.spec()), number = cut.number,
                      round = cut.round](const Result<snapshot::PartFile>& file) {
                       if (!*alive) return;
                       const auto found = cuts_.find(part);
                       if (found == cuts_.end() || found->second.number != number ||
                           found->second.round != round) {
                         return;
                       }
                       found->second.bytes = 0;
                       CutProgress& progress = found->second.progress;
                       if (!file) {
                         progress.set_state(CutProgress::FAILED);
                         progress.set_message(file.error().message);
                         return;
                       }
                       progress.set_state(CutProgress::WRITTEN);
                       progress.set_file(file->name);
                       progress.set_bytes(file->bytes);
                       progress.set_crc32c(file->crc32c);
                     });
}

// The pipelines have it no more; what is being written goes on, for nobody.
void JobRegistry::end_cut(const JobKey& part) {
  const auto found = cuts_.find(part);
  if (found == cuts_.end()) return;
  const auto job = jobs_.find(part);
  if (job != jobs_.end() && found->second.progress.state() == CutProgress::CUTTING) {
    job->second->end_cut(host_);
  }
  cuts_.erase(found);
}

// Of a job whose shards the pipelines have given back.
void JobRegistry::lose_cut(const JobKey& part) {
  const auto found = cuts_.find(part);
  if (found == cuts_.end() || found->second.progress.state() != CutProgress::CUTTING) return;
  found->second.cuts.clear();
  found->second.bytes = 0;
  found->second.progress.set_state(CutProgress::FAILED);
  found->second.progress.set_message("the job has ended here, or gone elsewhere");
}

void JobRegistry::tick_snapshots() {
  std::vector<JobKey> forgotten;
  for (auto& [part, cut] : cuts_) {
    const auto job = jobs_.find(part);
    if (now_ns_ - cut.heard_ns > kCutKeptNs) {
      forgotten.push_back(part);
    } else if (job != jobs_.end()) {
      look_at_cut(*job->second, cut);
    }
  }
  for (const JobKey& part : forgotten) end_cut(part);
  std::vector<std::pair<JobKey, uint64_t>> overdue;
  for (const auto& [part, job] : jobs_) {
    const bool is_overdue =
        job->restoring != 0 && job->moments_due_ns != 0 && now_ns_ >= job->moments_due_ns;
    if (is_overdue) overdue.push_back({part, job->restoring});
  }
  for (const auto& [part, number] : overdue) {
    on_moments(part, number,
               Error{ErrorCode::kTimeout, "the disk has not answered for half a minute"});
  }
  for (auto entry = snapshots_.begin(); entry != snapshots_.end();) {
    const SnapshotEntry& snapshot = entry->second;
    snapshot.run->on_tick(now_ns_);
    const bool is_old = snapshot.run->is_over() && now_ns_ - snapshot.begun_ns > kRunKeptNs;
    entry = is_old && !has_job(entry->first) ? snapshots_.erase(entry) : std::next(entry);
  }
  begin_due_snapshots();
}

void JobRegistry::tell_end(const SnapshotRun& run) {
  const SnapshotView view = run.view();
  if (run.is_done()) {
    ++totals_.snapshots_taken;
    note(Severity::kInfo, "snapshot_taken",
         "job '" + view.job + "': snapshot " + std::to_string(view.number) + ", " +
             std::to_string(view.steps) + " steps, " + std::to_string(view.bytes) + " bytes in " +
             std::to_string(view.parts) + " parts");
    return;
  }
  ++totals_.snapshots_failed;
  note(Severity::kWarning, "snapshot_failed", "job '" + view.job + "': " + view.error);
}

// [snapshots] every_s: of jobs whose first part is here, counted from their start.
void JobRegistry::begin_due_snapshots() {
  if (options_.snapshot_every_ns == 0 || shelf_ == nullptr) return;
  std::vector<std::string> due;
  for (const auto& [part, job] : jobs_) {
    if (part.second != 0 || !may_be_cut(*job)) continue;
    if (job->snapshot_due_ns == 0) job->snapshot_due_ns = now_ns_ + options_.snapshot_every_ns;
    if (now_ns_ < job->snapshot_due_ns) continue;
    job->snapshot_due_ns = now_ns_ + options_.snapshot_every_ns;
    due.push_back(part.first);
  }
  for (const std::string& name : due) {
    const Status begun = begin_snapshot(name, options_.snapshot_every_ns, now_ns_);
    if (!begun) note(Severity::kWarning, "snapshot_failed", begun.error().message);
  }
}

// True while it is read; then the job is not to be started yet.
bool JobRegistry::awaits_snapshot(Job& job, const PartState* state) {
  return job.restoring != 0 || awaits_begin(job, state) || awaits_moments(job, state);
}

bool JobRegistry::awaits_begin(Job& job, const PartState* state) {
  if (job.spec().restore.empty() || job.restored) return false;
  snapshot::Restored known;  // of a job that began before
  bool has_begun = false;
  for (const Member& member : job.members()) {
    has_begun = has_begun || member.resumes;
    if (member.restored_snapshot == 0) continue;
    known.number = member.restored_snapshot;
    known.steps = member.restored_steps;
  }
  const bool is_needed = !has_begun || (known.number > 0 && job.begins_somewhere(state));
  if (!is_needed) {
    job.restored = known;
    return false;
  }
  if (shelf_ == nullptr) {
    fail_job(job, {ErrorCode::kInvalidArgument,
                   job.spec().title() + " is to begin with a snapshot (restore), but box '" +
                       options_.box_name + "' keeps none: name a folder in [snapshots] directory"});
    return true;
  }
  job.restoring = ++questions_;
  const std::string which = has_begun ? std::to_string(known.number) : job.spec().restore;
  shelf_->load(job.part_head(), {.which = which},
               [this, alive = alive_, part = key(job.spec()), number = job.restoring](auto loaded) {
                 if (*alive) on_restored(part, number, std::move(loaded));
               });
  return true;
}

void JobRegistry::on_restored(const JobKey& part, uint64_t number,
                              Result<snapshot::Restored> loaded) {
  const auto found = jobs_.find(part);
  if (found == jobs_.end() || found->second->restoring != number) return;
  Job& job = *found->second;
  job.restoring = 0;
  if (!loaded) {
    fail_job(job, {loaded.error().code, job.spec().title() + " cannot begin with snapshot '" +
                                            job.spec().restore + "': " + loaded.error().message});
    return;
  }
  job.restored = std::move(*loaded);
  note(Severity::kInfo, "snapshot_restored",
       job.restored->number == 0
           ? job.spec().title() + ": there is no snapshot yet, it begins with its ranks' weights"
           : job.spec().title() + " begins with snapshot " + std::to_string(job.restored->number) +
                 ", of " + std::to_string(job.restored->steps) + " steps");
  if (job.all_joined()) start_job(job);
}

// Momentum and moments that were lost with a box are those of the last snapshot of this run, if
// there is one: somewhat old is better than none.
bool JobRegistry::awaits_moments(Job& job, const PartState* state) {
  if (shelf_ == nullptr || job.moments || !job.lacks_moments(state)) return false;
  snapshot::Choice choice;
  choice.ranks = job.incarnations();
  for (const Member& member : job.members()) {
    choice.begun_with = std::max(choice.begun_with, member.restored_snapshot);
  }
  if (choice.ranks.empty()) return false;
  job.restoring = ++questions_;
  job.moments_due_ns = now_ns_ + kMomentsPatienceNs;
  shelf_->load(job.part_head(), std::move(choice),
               [this, alive = alive_, part = key(job.spec()), number = job.restoring](auto loaded) {
                 if (*alive) on_moments(part, number, std::move(loaded));
               });
  return true;
}

void JobRegistry::on_moments(const JobKey& part, uint64_t number,
                             Result<snapshot::Restored> loaded) {
  const auto found = jobs_.find(part);
  if (found == jobs_.end() || found->second->restoring != number) return;
  Job& job = *found->second;
  job.restoring = job.moments_due_ns = 0;
  if (!loaded) {
    note(Severity::kWarning, "snapshot_unusable",
         job.spec().title() +
             ": momentum and moments cannot be those of a snapshot: " + loaded.error().message);
  }
  job.moments = loaded ? std::move(*loaded) : snapshot::Restored();
  if (job.all_joined()) start_job(job);
}

}  // namespace pbox::appliance
