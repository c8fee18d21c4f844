// Snapshots that parts begin with, or whose optimizer state replaces the one that was lost.
#include <utility>

#include "appliance/control/snapshot_coordinator.h"
#include "appliance/control/start_plan.h"
#include "base/check.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// A part that could go on without the optimizer state waits for the disk only this long, because
// its ranks wait for a minute unless they are configured otherwise.
constexpr uint64_t kReadPatienceNs = 30 * kNanosPerSecond;

}  // namespace

void SnapshotCoordinator::tick_reads() {
  std::vector<std::pair<JobKey, uint64_t>> overdue;
  for (const auto& [part, read] : reads_) {
    if (read.due_ns != 0 && context_.now_ns >= read.due_ns) overdue.push_back({part, read.number});
  }
  for (const auto& [part, number] : overdue) {
    on_read(part, number,
            Error{ErrorCode::kTimeout,
                  "the disk has not answered within " + in_seconds(kReadPatienceNs)},
            &SnapshotCoordinator::on_optimizer_state);
  }
}

Result<bool> SnapshotCoordinator::read_for_start(Job& job, const PartState* state) {
  const JobKey part = key_of(job.spec());
  if (is_reading(part)) return false;
  const auto begins = read_beginning(job, state);
  if (!begins || !*begins) return begins;
  return read_optimizer_state(job, state);
}

Result<bool> SnapshotCoordinator::read_beginning(Job& job, const PartState* state) {
  if (job.spec().restore.empty() || job.restored()) return true;
  snapshot::Restored known;  // the snapshot that resuming ranks say the job began with
  const bool has_begun = job.members().any_resumes();
  for (const Member& member : job.members()) {
    if (member.restored_snapshot == 0) continue;
    known.number = member.restored_snapshot;
    known.steps = member.restored_steps;
  }
  const bool is_needed =
      !has_begun || (known.number > 0 && begins_somewhere(job.spec(), job.members(), state));
  if (!is_needed) {
    job.set_restored(std::move(known));
    return true;
  }
  if (store_ == nullptr) {
    return Error{ErrorCode::kInvalidArgument,
                 job.spec().title() + " has to begin with a snapshot (restore), but box '" +
                     context_.options.box_name +
                     "' keeps none; name a folder in [snapshots] directory"};
  }
  read(job, {.which = has_begun ? std::to_string(known.number) : job.spec().restore}, 0,
       &SnapshotCoordinator::on_beginning);
  return false;
}

// Optimizer state that was lost with a box is replaced by that of the newest snapshot of this run,
// if there is one: an old state is better than none.
bool SnapshotCoordinator::read_optimizer_state(Job& job, const PartState* state) {
  if (store_ == nullptr || job.optimizer_state()) return true;
  if (!lacks_optimizer_state(job.spec(), job.members(), state)) return true;
  snapshot::Choice choice;
  choice.ranks = job.members().incarnations();
  for (const Member& member : job.members()) {
    choice.begun_with = std::max(choice.begun_with, member.restored_snapshot);
  }
  if (choice.ranks.empty()) return true;
  read(job, std::move(choice), context_.now_ns + kReadPatienceNs,
       &SnapshotCoordinator::on_optimizer_state);
  return false;
}

void SnapshotCoordinator::read(const Job& job, snapshot::Choice choice, uint64_t due_ns,
                               void (SnapshotCoordinator::*done)(Job&, Loaded)) {
  const JobKey part = key_of(job.spec());
  const uint64_t number = context_.next_question();
  reads_[part] = {number, due_ns};
  choice.tenant = job.members().tenant();
  store_->load(job.part_head(), std::move(choice),
               [this, alive = std::weak_ptr(context_.alive), part, number, done](auto loaded) {
                 if (!alive.expired()) on_read(part, number, std::move(loaded), done);
               });
}

void SnapshotCoordinator::on_read(const JobKey& part, uint64_t number, Loaded loaded,
                                  void (SnapshotCoordinator::*done)(Job&, Loaded)) {
  const auto found = reads_.find(part);
  if (found == reads_.end() || found->second.number != number) return;
  reads_.erase(found);
  Job* job = context_.jobs.find(part);
  PBOX_CHECK(job != nullptr);  // on_closed() forgets the reads of a part
  (this->*done)(*job, std::move(loaded));
}

void SnapshotCoordinator::on_beginning(Job& job, Loaded loaded) {
  if (!loaded) {
    owner_.fail(job,
                {loaded.error().code, job.spec().title() + " cannot begin with snapshot '" +
                                          job.spec().restore + "': " + loaded.error().message});
    return;
  }
  job.set_restored(std::move(*loaded));
  const snapshot::Restored& restored = *job.restored();
  context_.note(Severity::kInfo, "snapshot_restored",
                restored.number == 0
                    ? job.spec().title() +
                          ": there is no snapshot yet, it begins with the weights of its ranks"
                    : job.spec().title() + " begins with snapshot " +
                          std::to_string(restored.number) + ", taken after " +
                          std::to_string(restored.steps) + " steps",
                job.spec().name);
  owner_.advance(key_of(job.spec()));
}

void SnapshotCoordinator::on_optimizer_state(Job& job, Loaded loaded) {
  if (!loaded) {
    context_.note(Severity::kWarning, "snapshot_unusable",
                  job.spec().title() + ": its optimizer state cannot be taken from a snapshot: " +
                      loaded.error().message,
                  job.spec().name);
  }
  job.set_optimizer_state(loaded ? std::move(*loaded) : snapshot::Restored());
  owner_.advance(key_of(job.spec()));
}

}  // namespace pbox::control
