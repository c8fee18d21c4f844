#include "appliance/control/state_handover.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_versions.h"
#include "nic/wire/tenant.h"

namespace pbox::control {
namespace {

using Severity = RegistryEvent::Severity;

// Time for one answer, which has half a megabyte at most. kAnswerNs is for a box after which the
// box with a backup copy can still be asked. kLastAnswerNs is for the last box that can be asked:
// the only state there is must not be lost because that box is merely slow.
constexpr uint64_t kAnswerNs = 2 * kNanosPerSecond;
constexpr uint64_t kLastAnswerNs = 8 * kNanosPerSecond;

// Returns how long to wait for an answer: longer if no other box can be asked afterwards.
uint64_t answer_time_ns(const CopyName& next) {
  return next.job.empty() ? kLastAnswerNs : kAnswerNs;
}

Result<proto::PartState> part_state_in(const Result<proto::BoxMessage>& answer) {
  if (!answer) return answer.error();
  if (!answer->has_part_state()) {
    return Error{ErrorCode::kMismatch, "the answer is not a part state"};
  }
  return answer->part_state();
}

std::string in_kib(uint64_t bytes) {
  return std::to_string((bytes + 1023) / 1024) + " KiB";
}

}  // namespace

void StateHandover::keep(const Job& job, PartState state, bool is_copy, CopyName copy) {
  const uint64_t kept_for_ns = 2 * (job.timeouts().lost_ns + context_.options.dead_after_ns);
  kept_[key_of(job.spec())] = {.state = std::move(state),
                               .kept_for_ns = kept_for_ns,
                               .until_ns = context_.now_ns + kept_for_ns,
                               .is_copy = is_copy,
                               .copy = std::move(copy),
                               .asker = {}};
}

void StateHandover::audit(const proto::AskState& question, KeptState& kept,
                          const Connection* asker) const {
  if (asker == nullptr) return;
  const std::string name =
      asker->identity ? tls::to_uri(*asker->identity) : nic::address_string(asker->endpoint);
  if (!question.taken() && std::exchange(kept.asker, name) == name) return;
  context_.audit({.kind = audit::Kind::kState,
                  .job = question.job(),
                  .part = question.part(),
                  .epoch = question.epoch(),
                  .outcome = question.taken() ? "taken" : "given"},
                 asker);
}

Result<proto::BoxMessage> StateHandover::answer(const proto::AskState& question,
                                                const Connection* asker) {
  const auto kept = kept_.find({question.job(), question.part()});
  const bool is_copy = question.is_backup();
  const bool is_here = kept != kept_.end() && kept->second.is_copy == is_copy;
  // The copy has the epoch of the job that stores it, so the part's epoch is taken from the
  // question.
  if (is_here && is_copy) kept->second.state.epoch = question.epoch();
  if (!is_here || kept->second.state.epoch != question.epoch()) {
    return Error{ErrorCode::kNotFound,
                 "box '" + context_.options.box_name + "' has no state of epoch " +
                     std::to_string(question.epoch()) + " for part " +
                     std::to_string(question.part()) + " of job '" + question.job() + "'"};
  }
  kept->second.until_ns = context_.now_ns + kept->second.kept_for_ns;
  audit(question, kept->second, asker);
  proto::BoxMessage answer;
  if (question.taken()) {
    answer.mutable_part_state();
    discard_copy(kept->second.copy);
    kept_.erase(kept);
  } else {
    *answer.mutable_part_state() = answer_of(kept->second.state, question);
  }
  return answer;
}

void StateHandover::drop_expired() {
  for (auto entry = kept_.begin(); entry != kept_.end();) {
    if (context_.now_ns < entry->second.until_ns) {
      ++entry;
      continue;
    }
    context_.note(entry->second.is_copy ? Severity::kDebug : Severity::kWarning,
                  "part_state_dropped",
                  "part " + std::to_string(entry->first.second) + " of job '" + entry->first.first +
                      "': no box has asked for its state within " +
                      in_seconds(entry->second.kept_for_ns) + "; it is dropped");
    entry = kept_.erase(entry);
  }
}

void StateHandover::forgive(uint64_t gap_ns) {
  for (auto& [part, kept] : kept_) kept.until_ns += gap_ns;
  for (auto& [part, transfer] : transfers_) transfer.answer_due_ns += gap_ns;
}

uint64_t StateHandover::kept_bytes(const JobKey& part) const {
  const auto kept = kept_.find(part);
  return kept == kept_.end() ? 0 : kept->second.state.bytes();
}

uint64_t StateHandover::bytes_of(std::optional<std::string_view> tenant) const {
  TenantUses uses;
  add_use(uses);
  return memory_in(uses, tenant);
}

void StateHandover::add_use(TenantUses& uses) const {
  const auto add = [&](const JobKey& part, const PartState& state) {
    uses[std::string(wire::tenant_of(part.first))].memory_bytes += state.bytes();
  };
  for (const auto& [part, kept] : kept_) add(part, kept.state);
  for (const auto& [part, transfer] : transfers_) add(part, transfer.state.state());
}

size_t StateHandover::states_kept() const {
  return static_cast<size_t>(std::count_if(
      kept_.begin(), kept_.end(), [](const auto& entry) { return !entry.second.is_copy; }));
}

bool StateHandover::fetch(const Job& job) {
  PBOX_CHECK(!job.running());  // its newest state is here
  if (job.spec().mode != pipeline::Mode::kOptimize) return true;
  const JobKey part = key_of(job.spec());
  const Member* newest = job.members().newest_resuming();
  const bool is_here = newest != nullptr && newest->box == context_.options.box_name;
  const auto kept = is_here ? kept_.find(part) : kept_.end();
  const bool is_kept = kept != kept_.end() && kept->second.state.epoch == newest->epoch;
  // If this box has restarted, only a backup copy has what it had.
  const bool no_box_has_it =
      newest == nullptr || newest->box.empty() || (is_here && newest->copy.job.empty());
  if (no_box_has_it || is_kept) {
    transfers_.erase(part);
    return true;
  }
  const auto transfer = transfers_.find(part);
  const bool is_under_way = transfer != transfers_.end() &&
                            transfer->second.session_box == newest->box &&
                            transfer->second.state.state().epoch == newest->epoch;
  if (!is_under_way) begin_transfer(job, *newest);
  return transfers_.at(part).is_over;
}

void StateHandover::begin_transfer(const Job& job, const Member& newest) {
  const bool is_here = newest.box == context_.options.box_name;
  StateTransfer transfer{.box = is_here ? newest.copy.box : newest.box,
                         .session_box = newest.box,
                         .job = is_here ? newest.copy.job : job.spec().name,
                         .part = is_here ? 0 : job.spec().part,
                         .is_backup = is_here,
                         .next = is_here ? CopyName() : newest.copy,
                         .state = IncomingState(newest.epoch, state_value_counts(job.spec()))};
  ask(job, transfers_.insert_or_assign(key_of(job.spec()), std::move(transfer)).first->second);
}

void StateHandover::ask(const Job& job, StateTransfer& transfer) {
  PBOX_CHECK(!transfer.is_over && !transfer.box.empty());
  proto::WorkerMessage message;
  proto::AskState& question = *message.mutable_ask_state();
  question.set_job(transfer.job);
  question.set_part(transfer.part);
  question.set_is_backup(transfer.is_backup);
  transfer.state.describe(question);
  wire::state_versions(message);
  const uint64_t number = context_.next_question();
  transfer.number = number;
  transfer.answer_due_ns = context_.now_ns + answer_time_ns(transfer.next);
  const bool was_asking = std::exchange(is_asking_, true);
  parts_.ask_box(transfer.box, message,
                 [this, alive = std::weak_ptr(context_.alive), part = key_of(job.spec()),
                  number](const auto& answer) {
                   if (!alive.expired()) on_answer(part, number, part_state_in(answer));
                 });
  is_asking_ = was_asking;
}

// An answer may arrive within the call that asks, or after the transfer was replaced.
void StateHandover::on_answer(const JobKey& part, uint64_t number,
                              const Result<proto::PartState>& answer) {
  const Job* job = context_.jobs.find(part);
  const auto found = transfers_.find(part);
  if (job == nullptr || found == transfers_.end()) return;
  StateTransfer& transfer = found->second;
  if (transfer.is_over || transfer.number != number) return;
  transfer.number = 0;
  const Status taken = answer ? transfer.state.take(*answer) : Status(answer.error());
  if (taken && !transfer.state.is_whole()) return ask(*job, transfer);
  if (taken) {
    transfer.is_over = true;
    context_.note(Severity::kInfo, "part_state_here",
                  job->spec().title() + ": box " + transfer.box + " has handed over its state, " +
                      in_kib(transfer.state.state().bytes()),
                  job->spec().name);
  } else {
    give_up(*job, taken.error().message);
  }
  if (!is_asking_) owner_.advance(part);
}

// Gives up on the box that was asked, and asks for the backup copy if there is one.
void StateHandover::give_up(const Job& job, const std::string& why) {
  StateTransfer& former = transfers_.at(key_of(job.spec()));
  PBOX_CHECK(!former.is_over);
  const CopyName copy = former.next;
  const std::string refusal = job.spec().title() + ": box " + former.box + ", which had " +
                              (former.is_backup ? "a backup copy of it" : "it before") +
                              ", did not hand over its state: " + why;
  if (copy.job.empty()) {
    former.is_over = true;
    return context_.note(Severity::kWarning, "part_state_lost", refusal);
  }
  context_.note(Severity::kInfo, "part_copy_asked_for",
                refusal + "; box " + copy.box + " is asked for its backup copy");
  former = {.box = copy.box,
            .session_box = former.session_box,
            .job = copy.job,
            .is_backup = true,
            .next = {},
            .state = IncomingState(former.state.state().epoch, state_value_counts(job.spec()))};
  ask(job, former);
}

const PartState* StateHandover::state_for(const Job& job) {
  const Member* newest = job.members().newest_resuming();
  if (newest == nullptr || job.spec().mode != pipeline::Mode::kOptimize) return nullptr;
  const JobKey part = key_of(job.spec());
  const PartState* state = nullptr;
  const auto kept = kept_.find(part);
  const auto transfer = transfers_.find(part);
  const bool has_transfer = transfer != transfers_.end();
  if (newest->box == context_.options.box_name && kept != kept_.end()) {
    state = &kept->second.state;
  } else if (has_transfer && transfer->second.state.is_whole()) {
    state = &transfer->second.state.state();
  }
  if (state == nullptr || state->epoch != newest->epoch) return nullptr;
  if (continues(job.spec(), job.members(), *state)) return state;
  context_.note(Severity::kWarning, "part_state_misfit",
                job.spec().title() + ": the state that box " +
                    (has_transfer ? transfer->second.box : newest->box) +
                    " has does not match the rounds of its ranks, or belongs to another job of "
                    "that name; it is not used",
                job.spec().name);
  return nullptr;
}

StateHandover::Transfer StateHandover::check_deadline(const Job& job) {
  const auto found = transfers_.find(key_of(job.spec()));
  if (found == transfers_.end()) return Transfer::kNone;
  if (!found->second.is_over && context_.now_ns >= found->second.answer_due_ns) {
    give_up(job, "no answer within " + in_seconds(answer_time_ns(found->second.next)));
  }
  return found->second.is_over ? Transfer::kOver : Transfer::kUnderWay;
}

void StateHandover::begin_opening(const Job& job, const PartState& state) {
  PBOX_CHECK(!job.running());  // its source would be replaced before it is released
  const auto transfer = transfers_.find(key_of(job.spec()));
  StateSource& source = sources_[key_of(job.spec())];
  source = {.box = context_.options.box_name,
            .job = job.spec().name,
            .part = job.spec().part,
            .epoch = state.epoch,
            .is_backup = false};
  if (transfer == transfers_.end()) return;
  source.box = transfer->second.box;
  source.job = transfer->second.job;
  source.part = transfer->second.part;
  source.is_backup = transfer->second.is_backup;
}

void StateHandover::release_previous_owner(const Job& job) {
  const auto found = sources_.find(key_of(job.spec()));
  if (found == sources_.end()) return;
  const StateSource source = found->second;
  sources_.erase(found);
  if (source.box != context_.options.box_name || source.is_backup) {
    return acknowledge_handover(source);
  }
  const auto kept = kept_.find(key_of(job.spec()));
  if (kept == kept_.end() || kept->second.state.epoch != source.epoch) return;
  discard_copy(kept->second.copy);
  kept_.erase(kept);
}

void StateHandover::acknowledge_handover(const StateSource& source) {
  proto::WorkerMessage message;
  proto::AskState& question = *message.mutable_ask_state();
  question.set_job(source.job);
  question.set_part(source.part);
  question.set_is_backup(source.is_backup);
  question.set_epoch(source.epoch);
  question.set_taken(true);
  wire::state_versions(message);
  // If the message is lost, the other box drops the state when its time is over.
  parts_.ask_box(source.box, message, [](const auto&) {});
}

void StateHandover::discard_copy(const CopyName& copy) {
  if (copy.job.empty()) return;
  acknowledge_handover(
      {.box = copy.box, .job = copy.job, .part = 0, .epoch = 0, .is_backup = true});
}

void StateHandover::forget(const JobKey& part) {
  transfers_.erase(part);
  sources_.erase(part);
}

}  // namespace pbox::control
