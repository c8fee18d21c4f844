// Parts in mode optimize that go from box to box with their weights and their optimizer's state.
// The box that gives one up keeps what it was, the one that its workers come to asks for it before
// it opens the part. Without it, as after a box's loss, weights come back from the workers, and the
// optimizer begins anew.
#include <algorithm>
#include <utility>

#include "appliance/control/job_registry.h"
#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::appliance {
namespace {

using Severity = RegistryEvent::Severity;

// For one answer, of half a megabyte at most.
constexpr uint64_t kAnswerNs = 2 * kNanosPerSecond;

Result<proto::PartState> part_state_of(const Result<proto::BoxMessage>& answer) {
  if (!answer) return answer.error();
  if (!answer->has_part_state()) {
    return Error{ErrorCode::kMismatch, "it answers something else"};
  }
  return answer->part_state();
}

std::string in_kib(uint64_t bytes) {
  return std::to_string((bytes + 1023) / 1024) + " KiB";
}

}  // namespace

// Before the job is closed.
void JobRegistry::keep_state(Job& job) {
  if (!job.running() || job.spec().mode != pipeline::Mode::kOptimize) return;
  if (!job.spec().may_move()) return;
  CopyName copy = job.copy();
  keep(job, job.take_state(host_), false, std::move(copy));
}

// Its ranks have so long to come together elsewhere, twice over, before they are given up there.
void JobRegistry::keep(const Job& job, PartState state, bool is_copy, CopyName copy) {
  const uint64_t kept_for_ns = 2 * (job.lost_timeout_ns + options_.dead_after_ns);
  kept_[key(job.spec())] = {.state = std::move(state),
                            .kept_for_ns = kept_for_ns,
                            .until_ns = now_ns_ + kept_for_ns,
                            .is_copy = is_copy,
                            .copy = std::move(copy)};
}

// The asking box has all ranks of the part: whatever this one believes, it is over here.
void JobRegistry::on_ask_state(ConnectionId id, const proto::AskState& question) {
  if (const Status speaks = check_version(question.protocol_version(), "another box"); !speaks) {
    return refuse(id, speaks.error());
  }
  const JobKey part{question.job(), question.part()};
  const auto job = jobs_.find(part);
  const bool is_copy = question.is_backup();
  if (job != jobs_.end() && job->second->running() && job->second->spec().is_backup == is_copy &&
      (is_copy || job->second->epoch() == question.epoch())) {
    note(Severity::kInfo, "part_asked_for",
         job->second->spec().title() +
             (is_copy ? ", the copy of a part whose box is lost, goes to the one that has it now"
                      : " goes on at another box, which asks for its state"));
    keep_state(*job->second);
    hang_up(*job->second);
  }
  const auto kept = kept_.find(part);
  const bool is_here = kept != kept_.end() && kept->second.is_copy == is_copy;
  if (is_here && is_copy) kept->second.state.epoch = question.epoch();
  if (!is_here || kept->second.state.epoch != question.epoch()) {
    return refuse(id, {ErrorCode::kNotFound,
                       "box '" + options_.box_name + "' has no state of epoch " +
                           std::to_string(question.epoch()) + " of part " +
                           std::to_string(question.part()) + " of job '" + question.job() + "'"});
  }
  kept->second.until_ns = now_ns_ + kept->second.kept_for_ns;
  proto::BoxMessage answer;
  if (question.taken()) {
    answer.mutable_part_state();
    forget_copy(kept->second.copy);
    kept_.erase(kept);
  } else {
    *answer.mutable_part_state() = answer_of(kept->second.state, question);
  }
  send(id, std::move(answer));
}

// True while it comes; then the job is not to be started yet.
bool JobRegistry::awaits_state(Job& job) {
  if (job.spec().mode != pipeline::Mode::kOptimize) return false;
  const Member* newest = job.newest_resuming();
  const bool is_here = newest != nullptr && newest->box == options_.box_name;
  const auto kept = is_here ? kept_.find(key(job.spec())) : kept_.end();
  const bool is_kept = kept != kept_.end() && kept->second.state.epoch == newest->epoch;
  // What a box that was started again had is in the copy, if there is one.
  const bool nobody_has_it =
      newest == nullptr || newest->box.empty() || (is_here && newest->copy.job.empty());
  if (nobody_has_it || is_kept) {
    job.transfer.reset();
    return false;
  }
  const bool is_under_way = job.transfer && job.transfer->session_box == newest->box &&
                            job.transfer->state.state().epoch == newest->epoch;
  if (!is_under_way) begin_transfer(job, *newest);
  return !job.transfer->is_over;
}

void JobRegistry::begin_transfer(Job& job, const Member& newest) {
  const bool is_here = newest.box == options_.box_name;
  job.transfer = StateTransfer{.box = is_here ? newest.copy.box : newest.box,
                               .session_box = newest.box,
                               .job = is_here ? newest.copy.job : job.spec().name,
                               .part = is_here ? 0 : job.spec().part,
                               .is_backup = is_here,
                               .next = is_here ? CopyName() : newest.copy,
                               .state = IncomingState(newest.epoch, job.state_value_counts())};
  ask_state(job);
}

void JobRegistry::ask_state(Job& job) {
  proto::WorkerMessage message;
  proto::AskState& question = *message.mutable_ask_state();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job(job.transfer->job);
  question.set_part(job.transfer->part);
  question.set_is_backup(job.transfer->is_backup);
  job.transfer->state.describe(question);
  job.transfer->number = ++questions_;
  job.transfer->answer_due_ns = now_ns_ + kAnswerNs;
  const bool was_asking = std::exchange(is_asking_, true);
  parts_.ask_box(
      job.transfer->box, message,
      [this, alive = alive_, part = key(job.spec()), number = questions_](const auto& answer) {
        if (*alive) on_state(part, number, part_state_of(answer));
      });
  is_asking_ = was_asking;
}

// An answer may come within the question, or when nobody waits for it any more.
void JobRegistry::on_state(const JobKey& part, uint64_t number,
                           const Result<proto::PartState>& answer) {
  const auto found = jobs_.find(part);
  if (found == jobs_.end() || !found->second->transfer) return;
  Job& job = *found->second;
  StateTransfer& transfer = *job.transfer;
  if (transfer.is_over || transfer.number != number) return;
  transfer.number = 0;
  const Status taken = answer ? transfer.state.take(*answer) : Status(answer.error());
  if (taken && !transfer.state.is_whole()) return ask_state(job);
  if (taken) {
    transfer.is_over = true;
    note(Severity::kInfo, "part_state_here",
         job.spec().title() + ": box " + transfer.box + " has handed over its state, " +
             in_kib(transfer.state.state().bytes()));
  } else {
    give_up_state(job, taken.error().message);
  }
  if (!is_asking_ && job.all_joined()) start_job(job);
}

// A box that has a copy is asked then.
void JobRegistry::give_up_state(Job& job, const std::string& why) {
  const StateTransfer& former = *job.transfer;
  const CopyName copy = former.next;
  const std::string refusal = job.spec().title() + ": box " + former.box + ", which had " +
                              (former.is_backup ? "a copy of it" : "it") +
                              ", hands over no state: " + why;
  if (copy.job.empty()) {
    job.transfer->is_over = true;
    return note(Severity::kWarning, "part_state_lost", refusal);
  }
  note(Severity::kInfo, "part_copy_asked_for", refusal + "; box " + copy.box + " has a copy");
  job.transfer =
      StateTransfer{.box = copy.box,
                    .session_box = former.session_box,
                    .job = copy.job,
                    .is_backup = true,
                    .next = {},
                    .state = IncomingState(former.state.state().epoch, job.state_value_counts())};
  ask_state(job);
}

// Whose workers have it as the newest: that of another box, or this one's own.
const PartState* JobRegistry::state_for(const Job& job) {
  const Member* newest = job.newest_resuming();
  if (newest == nullptr || job.spec().mode != pipeline::Mode::kOptimize) return nullptr;
  const PartState* state = nullptr;
  const auto kept = kept_.find(key(job.spec()));
  if (newest->box == options_.box_name && kept != kept_.end()) {
    state = &kept->second.state;
  } else if (job.transfer && job.transfer->state.is_whole()) {
    state = &job.transfer->state.state();
  }
  if (state == nullptr || state->epoch != newest->epoch) return nullptr;
  if (job.continues(*state)) return state;
  note(Severity::kWarning, "part_state_misfit",
       job.spec().title() + ": what box " + (job.transfer ? job.transfer->box : newest->box) +
           " has of it is of other rounds than its ranks are in, or of another job of that name");
  return nullptr;
}

// True while the job waits for it, or if it has started.
bool JobRegistry::tick_transfer(Job& job) {
  StateTransfer& transfer = *job.transfer;
  if (!transfer.is_over && now_ns_ < transfer.answer_due_ns) return true;
  if (!transfer.is_over) {
    give_up_state(job, "no answer within " + in_seconds(kAnswerNs));
    if (!job.transfer->is_over) return true;
  }
  if (!job.all_joined()) return false;
  start_job(job);
  return true;
}

// Once a round has finished here, every rank has a session of this epoch, and whatever the box
// before has is out of date. Until then the part may have to be opened from that once more.
void JobRegistry::settle_source(Job& job) {
  if (!job.opened_from) return;
  const StateSource source = *job.opened_from;
  job.opened_from.reset();
  if (source.box == options_.box_name && !source.is_backup) {
    const auto kept = kept_.find(key(job.spec()));
    if (kept == kept_.end() || kept->second.state.epoch != source.epoch) return;
    forget_copy(kept->second.copy);
    kept_.erase(kept);
    return;
  }
  tell_taken(source);
}

void JobRegistry::tell_taken(const StateSource& source) {
  proto::WorkerMessage message;
  proto::AskState& question = *message.mutable_ask_state();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job(source.job);
  question.set_part(source.part);
  question.set_is_backup(source.is_backup);
  question.set_epoch(source.epoch);
  question.set_taken(true);
  parts_.ask_box(source.box, message, [](const auto&) {});  // else its time is over some day
}

size_t JobRegistry::states_kept() const {
  return static_cast<size_t>(std::count_if(
      kept_.begin(), kept_.end(), [](const auto& entry) { return !entry.second.is_copy; }));
}

void JobRegistry::drop_old_states() {
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    if (now_ns_ < entry->second.until_ns) {
      ++entry;
      continue;
    }
    note(entry->second.is_copy ? Severity::kDebug : Severity::kWarning, "part_state_dropped",
         "part " + std::to_string(entry->first.second) + " of job '" + entry->first.first +
             "': no box has asked for its state within " + in_seconds(entry->second.kept_for_ns));
    entry = kept_.erase(entry);
  }
}

}  // namespace pbox::appliance
