#include "appliance/control/job_starter.h"

#include <algorithm>

#include "appliance/control/compression_spec.h"
#include "appliance/control/refusals.h"
#include "base/clock.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

StartPhase next(StartPhase phase) {
  return static_cast<StartPhase>(static_cast<uint8_t>(phase) + 1);
}

Error left_behind(const JobSpec& spec, uint32_t rank) {
  return {ErrorCode::kWorkerLost,
          "rank " + std::to_string(rank) + " of " + spec.title() +
              " was left behind: the box was lost, and the others continue from rounds for which "
              "it has no gradients; start it again with rejoin"};
}

}  // namespace

const char* to_string(StartPhase phase) {
  switch (phase) {
    case StartPhase::kGathering: return "gathering";
    case StartPhase::kFetchingState: return "fetching state";
    case StartPhase::kReadingSnapshot: return "reading snapshot";
    case StartPhase::kConnectingRelay: return "connecting relay";
    case StartPhase::kPreparingBackup: return "preparing backup";
    case StartPhase::kPrefaulting: return "prefaulting memory";
    case StartPhase::kReservingEpoch: return "reserving epoch";
    case StartPhase::kRunning: break;
  }
  return "running";
}

void JobStarter::advance(const JobKey& part, bool without_missing) {
  pending_.push_back({part, without_missing});
  if (is_advancing_) return;
  is_advancing_ = true;
  while (!pending_.empty()) {
    const Advance next = pending_.front();
    pending_.erase(pending_.begin());
    walk(next);
  }
  is_advancing_ = false;
}

// Each walk begins with the first phase, because ranks may have come or gone since the last one,
// and a kept state may have expired. A phase whose answer is recorded completes at once.
void JobStarter::walk(const Advance& advance) {
  Job* job = context_.jobs.find(advance.part);
  if (job == nullptr || job->running()) return;
  const PartState* state = nullptr;
  StartPhase phase = StartPhase::kGathering;
  do {
    starts_[advance.part].phase = phase;
    if (take_step(*job, phase, advance.without_missing, state) != Step::kDone) return;
    phase = next(phase);
  } while (phase != StartPhase::kRunning);
  starts_[advance.part].phase = StartPhase::kRunning;
}

JobStarter::Step JobStarter::take_step(Job& job, StartPhase phase, bool without_missing,
                                       const PartState*& state) {
  const auto done = [](bool is_done) { return is_done ? Step::kDone : Step::kWaiting; };
  switch (phase) {
    case StartPhase::kGathering: return done(without_missing || job.members().complete());
    case StartPhase::kFetchingState:
      if (!parts_.handover.fetch(job)) return Step::kWaiting;
      state = parts_.handover.state_for(job);
      return Step::kDone;
    case StartPhase::kReadingSnapshot: return read_snapshot(job, state);
    case StartPhase::kConnectingRelay: return done(parts_.relays.connect(job));
    case StartPhase::kPreparingBackup: return done(parts_.backups.prepare_backup(job, state));
    case StartPhase::kPrefaulting: return prefault(job, state);
    case StartPhase::kReservingEpoch: return reserve_epoch(job, state);
    case StartPhase::kRunning: break;
  }
  PBOX_CHECK(false);  // a running part would be opened twice
  return Step::kFailed;
}

JobStarter::Step JobStarter::read_snapshot(Job& job, const PartState* state) {
  const auto is_read = parts_.snapshots.read_for_start(job, state);
  if (!is_read) {
    owner_.fail(job, is_read.error());
    return Step::kFailed;
  }
  return *is_read ? Step::kDone : Step::kWaiting;
}

// If ranks are waiting in the middle of their training, the part starts before all memory is
// prefaulted.
JobStarter::Step JobStarter::prefault(Job& job, const PartState* state) {
  if (const Status reserved = job.reserve_memory(host_); !reserved) {
    owner_.fail(job, reserved.error());
    return Step::kFailed;
  }
  const bool is_new = state == nullptr && !job.recovering() && !job.spec().is_backup;
  return is_new && job.shards().is_prefaulting() ? Step::kWaiting : Step::kDone;
}

JobStarter::Step JobStarter::reserve_epoch(Job& job, const PartState* state) {
  const auto beyond = beyond_recovery(job.spec(), job.members(), state);
  if (!beyond) {
    owner_.fail(job, beyond.error());
    return Step::kFailed;
  }
  for (const uint32_t rank : *beyond) dismiss(job, rank, left_behind(job.spec(), rank));
  if (!beyond->empty() && !job.members().complete()) {
    starts_[key_of(job.spec())].phase = StartPhase::kGathering;
    return Step::kWaiting;
  }
  const auto epoch = epochs_.next(job.members().newest_epoch());
  if (!epoch && epoch.error().code == ErrorCode::kUnavailable) {
    await_epoch(job, epoch.error());
    return Step::kWaiting;
  }
  return start_job(job, epoch, state);
}

void JobStarter::await_epoch(Job& job, const Error& error) {
  auto& refusal = starts_[key_of(job.spec())].epoch_refusal;
  if (!refusal) {
    context_.note(Severity::kWarning, "epoch_awaited", job.spec().title() + ": " + error.message,
                  job.spec().name);
  }
  refusal = error;
}

JobStarter::Step JobStarter::start_job(Job& job, const Result<uint32_t>& epoch,
                                       const PartState* state) {
  const JobKey part = key_of(job.spec());
  PBOX_CHECK(!job.running());  // a second opening would use the same ranks
  starts_[part].epoch_refusal.reset();
  exclude_missing(job);
  const uint64_t barrier = job.members().barrier_to_resume();
  const bool recovers = job.recovering();
  if (state != nullptr) parts_.handover.begin_opening(job, *state);
  const Status opened = epoch ? job.open(host_, spis_, context_.session_maker(), *epoch, state)
                              : Status(epoch.error());
  if (!opened) {
    owner_.fail(job, opened.error());
    return Step::kFailed;
  }
  parts_.handover.on_opened(part);
  if (!recovers) parts_.handover.drop(part);  // the state of an earlier job of that name
  if (job.relay()) {
    // The relay has joined with the registered priorities.
    if (job.priorities_set()) job.relay()->set_priorities(job.chunk_priorities());
    job.relay()->run(job.shards().lanes(host_));
  }
  parts_.backups.on_started(job);
  parts_.sessions.share_credit();
  job.on_started(recovers ? barrier : 0);
  note_started(job, recovers);
  parts_.verdicts.on_started(job);
  if (!context_.jobs.contains(part)) return Step::kFailed;
  parts_.sessions.send_all(job, recovers);
  return Step::kDone;
}

void JobStarter::note_started(const Job& job, bool recovers) {
  if (recovers) ++context_.totals.jobs_recovered;
  const JobSpec& spec = job.spec();
  context_.note(Severity::kInfo, recovers ? "job_recovered" : "job_started",
                spec.title() + ": " + std::to_string(job.members().count(Member::State::kJoined)) +
                    " workers, " + std::to_string(spec.element_count()) + " elements in " +
                    std::to_string(spec.tensors.size()) + " tensors" + compressed_text(spec) +
                    (recovers && first_compressed(spec) != nullptr
                         ? " (the box's residues of their sums begin at 0)"
                         : "") +
                    ", fragments of " + std::to_string(job.fragment_bytes()) + " bytes, epoch " +
                    std::to_string(job.epoch()),
                spec.name);
  if (!job.has_restarted_optimizer()) return;
  ++context_.totals.optimizer_restarts;
  const auto& replaced = job.optimizer_state();
  context_.note(
      Severity::kWarning, "optimizer_restarted",
      spec.title() +
          ": the box that had its weights and optimizer state was lost; the weights are those that "
          "its workers hold, and the optimizer state " +
          (replaced && replaced->number > 0
               ? "is that of snapshot " + std::to_string(replaced->number) + ", taken after " +
                     std::to_string(replaced->steps) + " steps"
               : std::string("restarts from 0")),
      spec.name);
}

bool JobStarter::on_tick(Job& job) {
  const JobKey part = key_of(job.spec());
  const bool lacks_epoch = starts_[part].epoch_refusal.has_value();
  if (lacks_epoch && context_.now_ns - job.gather_times().begun_ns > job.timeouts().join_ns) {
    owner_.fail(job, {ErrorCode::kUnavailable,
                      job.spec().title() + ": " + starts_[part].epoch_refusal->message});
    return true;
  }
  const auto transfer = parts_.handover.check_deadline(job);
  if (transfer == StateHandover::Transfer::kUnderWay) return true;
  const bool is_complete = job.members().complete();
  if (transfer == StateHandover::Transfer::kOver && is_complete) {
    advance(part);
    return true;
  }
  if (parts_.snapshots.is_reading(part)) return true;
  if (starts_[part].phase == StartPhase::kPrefaulting) {
    if (job.shards().is_prefaulting()) return true;
    if (is_complete) {
      advance(part);
      return true;
    }
  }
  // The upstream box and the backup box have a deadline of their own.
  if (job.relay() && is_complete && !lacks_epoch) return true;
  if (!lacks_epoch || !is_complete) return false;
  advance(part);
  return true;
}

StartPhase JobStarter::phase_of(const JobKey& part) const {
  const auto found = starts_.find(part);
  return found == starts_.end() ? StartPhase::kGathering : found->second.phase;
}

void JobStarter::dismiss_left_behind(Job& job) {
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    const Member& member = job.members()[rank];
    if (member.state != Member::State::kJoined) continue;
    if (member.resumes && job.members().left_behind(rank, member.told())) {
      dismiss(job, rank, left_behind(job.spec(), rank));
    } else if (!member.resumes && job.spec().excludes_for_good() &&
               job.members().left_behind(rank, {0, 0})) {
      dismiss(job, rank, excluded_for_good(job.spec(), rank));
    }
  }
}

void JobStarter::dismiss(Job& job, uint32_t rank, const Error& why) {
  Member& member = job.members()[rank];
  context_.connections.dismiss(member.connection, why);
  member = {};
}

// Excludes the missing ranks. They may still come back as new processes, or join for the first
// time. Ranks that the job had gone on without before count only once.
void JobStarter::exclude_missing(Job& job) {
  const bool recovers = job.recovering();
  for (uint32_t rank = 0; rank < job.members().size(); ++rank) {
    Member& member = job.members()[rank];
    if (member.ready()) continue;
    const bool was_excluded = job.members().left_behind(rank, {0, 0});
    if (member.connection != 0) context_.connections.drop(member.connection);
    member = {};
    member.state = Member::State::kExcluded;
    member.lost_reason = was_excluded ? "the others had gone on without it before"
                         : recovers   ? "it did not come back after the box was lost"
                                      : "it had not joined yet";
    context_.totals.workers_excluded += recovers && !was_excluded ? 1 : 0;
  }
}

}  // namespace pbox::control
