#include "appliance/control/backup_keeper.h"

#include <algorithm>

#include "appliance/control/job_relay.h"
#include "base/clock.h"
#include "base/rng.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// A part that has just started waits this long before it looks for a box that can have a copy.
constexpr uint64_t kFirstProbeNs = kNanosPerSecond;
// Interval at which a part without a copy asks boxes. It doubles up to kProbeMaxNs as they refuse.
constexpr uint64_t kProbeNs = 2 * kNanosPerSecond;
constexpr uint64_t kProbeMaxNs = 64 * kNanosPerSecond;
// A box that restarts registers again within this time.
constexpr uint64_t kAbsentNs = 2 * kNanosPerSecond;

std::string hex(uint64_t number) {
  std::string digits(16, '0');
  for (size_t digit = 16; digit-- > 0; number >>= 4)
    digits[digit] = "0123456789abcdef"[number & 15];
  return digits;
}

// Returns whether the job is about to end, because ranks that the others cannot do without have
// left. They would not come if it gathered again, and it needs no copy any more.
bool has_leavers(const Job& job) {
  return job.members().count(Member::State::kLeft) > 0;
}

}  // namespace

std::string BackupKeeper::new_copy_name(const JobSpec& spec) {
  std::string end = "#";
  end.append(std::to_string(spec.part)).append("~").append(hex(context_.options.draw()));
  return spec.name.substr(0, limits::kJobNameBytesMax - end.size()) + end;
}

bool BackupKeeper::prepare_backup(Job& job, const PartState* state) {
  if (job.spec().replicas == 0) return true;
  PBOX_CHECK(!job.running());  // a copy is complete only if it begins with the opening
  Backup& backup = backups_[key_of(job.spec())];
  if (backup.is_given_up) return true;
  const uint32_t begins_from = state == nullptr ? 0 : state->epoch;
  if (job.relay() && backup.seeded_epoch != 0 && backup.seeded_epoch != begins_from) {
    job.drop_relay();  // the copy has a state that the part no longer begins with
    --backup.tried;
  }
  if (job.relay() == nullptr) return !join_next(job, backup);
  if (!backup.is_joined) return false;
  if (state != nullptr && backup.seeded_epoch == 0) {
    backup.seeded_epoch = begins_from;
    backup.is_seeding = true;
    job.relay()->seed(backup_blocks(job.spec(), *state));
  }
  return !backup.is_seeding;
}

// Returns false if no box is left to be asked.
bool BackupKeeper::join_next(Job& job, Backup& backup) {
  PBOX_CHECK(boxes_ != nullptr);  // such a part would not have been admitted
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  const size_t tried = backup.tried;
  backup = {.tried = tried + 1};
  if (tried >= boxes.size()) {
    backup.is_given_up = true;
    context_.note(Severity::kWarning, "backup_missing",
                  job.spec().title() +
                      ": no other box can have a copy of its weights and optimizer state (" +
                      std::to_string(boxes.size()) +
                      " asked); it starts without a copy, and gets one once a box can have it",
                  job.spec().name);
    return false;
  }
  backup.box = boxes[tried].box();
  backup.number = context_.next_question();
  const std::string name = new_copy_name(job.spec());
  job.attach_relay(join_box(job, boxes[tried], name, backup.number), {backup.box, name});
  return true;
}

std::unique_ptr<Relay> BackupKeeper::join_box(const Job& job, const proto::PartPlace& place,
                                              const std::string& name, uint64_t number) {
  return boxes_->join(place.address(), backup_spec(job.spec(), name),
                      [this, alive = std::weak_ptr(context_.alive), part = key_of(job.spec()),
                       number](const Status& status) {
                        if (!alive.expired()) on_answer(part, number, status);
                      });
}

void BackupKeeper::on_started(const Job& job) {
  if (job.spec().replicas == 0) return;
  backups_[key_of(job.spec())].probe_due_ns = context_.now_ns + kFirstProbeNs;
}

// Called when the backup box has accepted the copy, has received the state, or has failed.
void BackupKeeper::on_answer(const JobKey& part, uint64_t number, const Status& status) {
  Job* job = context_.jobs.find(part);
  const auto found = backups_.find(part);
  if (job == nullptr || found == backups_.end()) return;
  Backup& backup = found->second;
  if (backup.probe && backup.probe_number == number) return on_probe(*job, backup, status);
  if (job->relay() == nullptr || backup.number != number) return;
  if (status) {
    if (backup.is_joined) backup.is_seeding = false;
    backup.is_joined = true;
    if (!job->running()) owner_.advance(part);
    return;
  }
  if (job->running()) {
    return lose_backup(*job, backup, "does not answer (" + status.error().message + ")");
  }
  job->drop_relay();
  note_refused(*job, backup, status);
  backup = {.tried = backup.tried};
  owner_.advance(part);
}

void BackupKeeper::note_refused(const Job& job, const Backup& backup, const Status& status) {
  context_.note(Severity::kWarning, "backup_refused",
                job.spec().title() + ": box " + backup.box +
                    " cannot have a copy of it: " + status.error().message,
                job.spec().name);
}

void BackupKeeper::lose_backup(Job& job, const Backup& backup, const std::string& why) {
  job.drop_relay();
  ++context_.totals.backups_lost;
  owner_.gather_again(
      job, {.event = {RegistryEvent::Severity::kWarning, "backup_lost",
                      job.spec().title() + ": box " + backup.box + ", which has its copy, " + why +
                          "; its ranks join again here, and another box gets a copy",
                      job.spec().name}});
}

void BackupKeeper::on_tick(Job& job) {
  if (job.spec().replicas == 0) return;
  PBOX_CHECK(job.running());  // otherwise gather_again() would disturb ranks that are joining
  if (has_leavers(job)) return;
  Backup& backup = backups_[key_of(job.spec())];
  if (job.relay()) {
    monitor_backup(job, backup);
  } else {
    find_backup(job, backup);
  }
}

// Replaces a backup box that is cut off or drains once it has not been a candidate for kAbsentNs,
// provided that there is another candidate.
void BackupKeeper::monitor_backup(Job& job, Backup& backup) {
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  const bool is_there =
      boxes.empty() || std::any_of(boxes.begin(), boxes.end(),
                                   [&](const auto& place) { return place.box() == backup.box; });
  if (is_there) {
    backup.absent_since_ns = 0;
  } else if (backup.absent_since_ns == 0) {
    backup.absent_since_ns = context_.now_ns;
  } else if (context_.now_ns - backup.absent_since_ns >= kAbsentNs) {
    lose_backup(job, backup, "is no longer registered, or drains");
  }
}

// The ranks gather again only once a box has accepted a copy, so that a refusal does not disturb
// them.
void BackupKeeper::find_backup(Job& job, Backup& backup) {
  if (backup.probe || context_.now_ns < backup.probe_due_ns) return;
  const auto boxes = parts_.backup_candidates(job.spec().name, job.spec().part);
  backup.probe_due_ns = context_.now_ns + kProbeNs;
  if (boxes.empty()) return;
  const auto& place = boxes[backup.tried++ % boxes.size()];
  backup.box = place.box();
  backup.probe_number = context_.next_question();
  backup.probe = join_box(job, place, new_copy_name(job.spec()), backup.probe_number);
}

void BackupKeeper::on_probe(Job& job, Backup& backup, const Status& status) {
  backup.probe.reset();
  if (status && has_leavers(job)) return;
  if (status) {
    owner_.gather_again(
        job, {.event = {RegistryEvent::Severity::kWarning, "backup_found",
                        job.spec().title() + ": box " + backup.box +
                            " can have a copy of it; its ranks join again here to begin one",
                        job.spec().name}});
    return;
  }
  const uint64_t waited_ns = std::max(backup.probe_interval_ns, kProbeNs);
  backup.probe_interval_ns = std::min(2 * waited_ns, kProbeMaxNs);
  backup.probe_due_ns = context_.now_ns + backup.probe_interval_ns;
  note_refused(job, backup, status);
}

}  // namespace pbox::control
