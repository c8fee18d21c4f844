#include "worker/membership/membership.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/version.h"
#include "nic/wire/control_versions.h"
#include "worker/collective/call_text.h"

namespace pbox::worker {
namespace {

// Interval of the checks whether an operation waits for a rank that has left.
constexpr uint64_t kPeersIntervalNs = 50'000'000;

std::vector<int32_t> registered_priorities(const std::vector<TensorSpec>& tensors) {
  std::vector<int32_t> priorities;
  for (const TensorSpec& tensor : tensors) priorities.push_back(tensor.priority);
  return priorities;
}

// `exchange`: null before the first session.
proto::WorkerMessage heartbeat_message(const Exchange* exchange, uint64_t now_ns) {
  proto::WorkerMessage message;
  proto::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_sequence(now_ns);
  if (exchange == nullptr) return message;
  const auto by_staleness = exchange->statistics().staleness.by_staleness;
  const auto last = std::find_if(by_staleness.rbegin(), by_staleness.rend(),
                                 [](uint64_t reads) { return reads > 0; });
  heartbeat.mutable_reads_by_staleness()->Add(by_staleness.begin(), last.base());
  const FinishedRounds& finished = exchange->finished_rounds();
  if (finished.rounds == 0) return message;
  heartbeat.mutable_finished()->set_rounds(finished.rounds);
  heartbeat.mutable_finished()->set_at_ns(finished.at_ns);
  heartbeat.mutable_finished()->set_busy_ns(finished.busy_ns);
  const auto& by_lane = finished.lane_busy_ns;
  heartbeat.mutable_finished()->mutable_busy_ns_by_pipeline()->Add(by_lane.begin(), by_lane.end());
  return message;
}

}  // namespace

Membership::Membership(MembershipOptions options, std::vector<TensorSpec> tensors,
                       proto::Optimizer optimizer)
    : options_(std::move(options)),
      tensors_(std::move(tensors)),
      optimizer_(std::move(optimizer)),
      rng_(options_.seed),
      verdict_(options_.verdict ? options_.verdict
                                : std::make_shared<HeldVerdict>(options_.rejoin)),
      priorities_(options_.priority_policy, registered_priorities(tensors_)) {}

Action& Membership::act(Action::Kind kind) {
  Action& action = actions_.emplace_back();
  action.kind = kind;
  return action;
}

proto::WorkerMessage& Membership::send() {
  return act(Action::Kind::kSend).message;
}

std::vector<Action> Membership::take_actions() {
  if (phase_ == Phase::kRunning && confirmed_version_ != verdict_->version()) {
    confirmed_version_ = verdict_->version();
    *send().mutable_step_verdict() = *verdict_->held();
  }
  return std::exchange(actions_, {});
}

// From now on the buffers of operations in flight belong to the application again. A device that
// still read them could send the box bytes that the application has changed, so the transport is
// closed.
void Membership::end(Phase phase, Error error) {
  PBOX_CHECK(phase == Phase::kFailed || phase == Phase::kLeft);
  if (is_over()) return;
  if (joins()) act(Action::Kind::kDisconnect);  // shows the box that this rank will not join
  act(Action::Kind::kCloseTransport);
  phase_ = phase;
  failure_ = std::move(error);
  loss_.reset();
  if (exchange_) exchange_->abandon();
}

void Membership::on_disconnected(const Error& why, uint64_t now_ns) {
  if (is_over()) return;
  if (phase_ == Phase::kRunning) {
    lose_box(why, now_ns);
  } else if (step_ != Step::kRetry) {
    fail_or_retry(why, now_ns);
  }
}

void Membership::on_message(const proto::BoxMessage& message, uint64_t now_ns) {
  if (is_over()) return;
  heard_ns_ = now_ns;
  has_answered_ = true;
  if (const std::string* need = wire::unknown_need(message.needs(), options_.added_fields)) {
    return fail({ErrorCode::kVersionMismatch,
                 "box " + connected_box_ + " uses " + *need + ", which this libpbox (" + kVersion +
                     ") does not know; use the libpbox of the box's release"});
  }
  switch (message.kind_case()) {
    case proto::BoxMessage::kFailure: on_failure(message.failure(), now_ns); return;
    case proto::BoxMessage::kDataAddresses:
      on_data_addresses(message.data_addresses(), now_ns);
      return;
    case proto::BoxMessage::kPartMap: on_part_map(message.part_map(), now_ns); return;
    case proto::BoxMessage::kMoved: on_moved(message.moved(), now_ns); return;
    case proto::BoxMessage::kSession: on_session(message.session(), now_ns); return;
    case proto::BoxMessage::kRounds: on_rounds(message.rounds(), now_ns); return;
    case proto::BoxMessage::kMembership:
      on_membership(message.membership().generation(), message.membership().absent_ranks());
      return;
    case proto::BoxMessage::kPeerLeft:
      left_.emplace(message.peer_left().rank(), Departure{now_ns, message.peer_left().reason()});
      return;
    case proto::BoxMessage::kBarrierReleased:
      requests_.on_barrier_released(message.barrier_released().sequence());
      return;
    case proto::BoxMessage::kSetPriorities: on_priorities(message.set_priorities()); return;
    case proto::BoxMessage::kLearningRateSet: {
      const auto rate = requests_.on_learning_rate_set(message.learning_rate_set().sequence());
      if (rate && exchange_) exchange_->set_learning_rate(*rate);
      return;
    }
    case proto::BoxMessage::kSyncSet: requests_.on_sync_set(message.sync_set()); return;
    case proto::BoxMessage::kAskSlotOperation: {
      proto::SlotOperation& answer = *send().mutable_slot_operation();
      answer = message.ask_slot_operation();
      if (!exchange_ || answer.chunk() >= exchange_->tensor_count()) return;
      // A slot has one chunk.
      const Laggard laggard = exchange_->laggard(answer.chunk(), now_ns);
      if (laggard.call != nullptr) answer.set_text(to_text(*laggard.call));
      return;
    }
    case proto::BoxMessage::kStepVerdict:
      verdict_->take(message.step_verdict());
      confirmed_version_ = 0;  // so that the box is sent the newest verdict, which it may lack
      return;
    default: return;  // heartbeats, and kinds that only a newer box knows
  }
}

void Membership::on_failure(const proto::Failure& failure, uint64_t now_ns) {
  const Error error{static_cast<ErrorCode>(failure.code()), failure.message()};
  // Errors that a box reports while it starts, or while other ranks come back. They pass by
  // themselves.
  const bool is_transient =
      error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kResourceExhausted;
  // The box may not have noticed yet that the rank whose place this worker takes is gone.
  const bool predecessor_counts = phase_ == Phase::kJoining && options_.rejoin &&
                                  error.code == ErrorCode::kAlreadyExists && now_ns < join_ends_ns_;
  // The box may not have received the part map yet that another box has made.
  const bool lacks_part_map = phase_ == Phase::kJoining && !options_.boxes.empty() &&
                              error.code == ErrorCode::kUnavailable && now_ns < join_ends_ns_;
  if ((phase_ == Phase::kRecovering && is_transient) || predecessor_counts || lacks_part_map) {
    try_again(error, now_ns);
  } else {
    fail(error);
  }
}

// Packets of another generation are dropped at both ends. Timers send again what was in flight.
void Membership::on_membership(uint32_t generation,
                               const google::protobuf::RepeatedField<uint32_t>& absent_ranks) {
  session_.set_generation(generation);
  spec_.generation = static_cast<uint16_t>(generation);
  absent_ranks_.assign(absent_ranks.begin(), absent_ranks.end());
  std::sort(absent_ranks_.begin(), absent_ranks_.end());
  if (phase_ == Phase::kRunning) exchange_->set_generation(spec_.generation);
}

void Membership::on_time(uint64_t now_ns) {
  if (phase_ == Phase::kJoining) check_join(now_ns);
  if (phase_ == Phase::kRecovering) check_recovery(now_ns);
  if (phase_ == Phase::kRunning) check_liveness(now_ns);
  if (is_over() || now_ns < heartbeat_due_ns_) return;
  heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
  send() = heartbeat_message(exchange(), now_ns);
}

uint64_t Membership::next_deadline_ns() const {
  if (is_over()) return UINT64_MAX;
  uint64_t deadline_ns = heartbeat_due_ns_;
  if (joins()) deadline_ns = std::min(deadline_ns, step_deadline_ns_);
  if (phase_ == Phase::kRecovering) {
    deadline_ns = std::min({deadline_ns, recovery_ends_ns(options_, *loss_), silence_ends_ns()});
  }
  if (phase_ == Phase::kRunning) {
    deadline_ns = std::min(deadline_ns, silence_ends_ns());
    if (!left_.empty()) deadline_ns = std::min(deadline_ns, peers_due_ns_);
  }
  return deadline_ns;
}

// Returns when a silent box counts as lost; UINT64_MAX while the box is not expected to speak.
uint64_t Membership::silence_ends_ns() const {
  const bool speaks = phase_ == Phase::kRunning || awaits(Step::kPartMap) ||
                      awaits(Step::kDataAddresses) || awaits(Step::kSession) ||
                      awaits(Step::kRounds) || awaits(Step::kTransport);
  return speaks ? heard_ns_ + dead_after_ns_ + 1 : UINT64_MAX;
}

Error silence_error(const std::string& box, uint64_t silent_ns) {
  return {ErrorCode::kBoxLost, "box " + box + " has not answered for " + in_seconds(silent_ns)};
}

void Membership::check_liveness(uint64_t now_ns) {
  PBOX_CHECK(exchange_.has_value());
  if (now_ns >= silence_ends_ns())
    return lose_box(silence_error(options_.box, now_ns - heard_ns_), now_ns);
  if (left_.empty() || now_ns < peers_due_ns_) return;
  peers_due_ns_ = now_ns + kPeersIntervalNs;
  for (uint32_t tensor = 0; tensor < exchange_->tensor_count(); ++tensor) {
    const Laggard laggard = exchange_->laggard(tensor, now_ns);
    if (laggard.kind != Laggard::Kind::kRank) continue;
    // An older answer may be out of date: the rank may have pushed, and only the result was lost.
    const auto left = left_.find(laggard.rank);
    if (left == left_.end() || laggard.asked_ns <= left->second.told_ns) continue;
    const std::string& reason = left->second.reason;
    // If this rank is a box, every rank of the job is a box that sums for a rack.
    fail({ErrorCode::kWorkerLost,
          (options_.workers > 0 ? "rack " : "rank ") + std::to_string(laggard.rank) +
              " left the job without " +
              (laggard.call == nullptr ? "pushing tensor '" + tensors_[tensor].name + "'"
                                       : "calling " + to_text(*laggard.call)) +
              ", which this rank waits for" + (reason.empty() ? "" : ": " + reason)});
    return;
  }
}

void Membership::start(const Operation& operation) {
  if (is_over()) return;
  PBOX_CHECK(exchange_.has_value());
  const uint32_t tensor = operation.tensor;
  Operation prioritised = operation;
  prioritised.priority = priorities_.of(tensor, operation.priority);
  if (operation.initial_weights && exchange_->round(tensor) > 0) prioritised.fetch = true;
  exchange_->start(prioritised);
  if (prioritised.fetch) return;
  if (const auto learned = priorities_.note_start(tensor, exchange_->round(tensor))) {
    ask_priorities(wire::PriorityPolicy::kForwardOrder, *learned);
  }
}

void Membership::ask_priorities(wire::PriorityPolicy policy, std::span<const int32_t> by_tensor) {
  if (is_over()) return;
  proto::SetPriorities& request = priorities_requested_.emplace();
  request.set_policy(static_cast<uint32_t>(policy));
  request.mutable_by_tensor()->Add(by_tensor.begin(), by_tensor.end());
  if (phase_ == Phase::kRunning) *send().mutable_set_priorities() = request;
}

// New priorities apply once the box sends them. It sends them to every rank, whichever rank asked.
void Membership::on_priorities(const proto::SetPriorities& told) {
  const auto& by_tensor = told.by_tensor();
  const bool fits = by_tensor.empty() || by_tensor.size() == static_cast<int>(tensors_.size());
  if (told.policy() >= wire::kPriorityPolicyCount || !fits) return;  // from a newer box
  priorities_.set(static_cast<wire::PriorityPolicy>(told.policy()),
                  {by_tensor.data(), static_cast<size_t>(by_tensor.size())});
  priorities_changed_ = priorities_known_ = true;
  priorities_requested_.reset();
  learn_priorities();
}

// The order on one rank is enough, because the backward pass is the same on all.
void Membership::learn_priorities() {
  if (options_.rank != 0 || !exchange_ || !priorities_.is_to_be_learned()) return;
  uint32_t round = options_.optimize ? 1 : 0;  // the round after the initial weights
  for (uint32_t tensor = 0; tensor < exchange_->tensor_count(); ++tensor) {
    round = std::max(round, exchange_->round(tensor) + (exchange_->busy(tensor) ? 1 : 0));
  }
  priorities_.learn_from(round);
}

void Membership::ask_barrier() {
  if (is_over()) return;
  proto::WorkerMessage message = requests_.request_barrier();
  if (phase_ == Phase::kRunning) send() = std::move(message);
}

void Membership::ask_learning_rate(float learning_rate) {
  if (is_over()) return;
  proto::WorkerMessage message = requests_.request_learning_rate(learning_rate);
  if (phase_ == Phase::kRunning) send() = std::move(message);
}

void Membership::ask_sync(const proto::SetSync& request) {
  if (is_over()) return;
  proto::WorkerMessage message = requests_.request_sync(request);
  wire::state_versions(message, options_.added_fields);
  const auto lacking =
      wire::used_fields(message, session_.protocol_version(), options_.added_fields);
  if (lacking.empty()) {
    if (phase_ == Phase::kRunning) send() = std::move(message);
    return;
  }
  proto::SetSync answer = message.set_sync();
  answer.set_refusal("box " + options_.box +
                     " runs an older release, which cannot change the consistency model of a "
                     "running job; upgrade it");
  requests_.on_sync_set(answer);
}

void Membership::leave(const std::string& reason) {
  if (is_over()) return;
  if (phase_ == Phase::kRunning) send().mutable_leave()->set_reason(reason);
  end(Phase::kLeft, {ErrorCode::kClosed, "this worker has left the job"});
}

void Membership::abandon(const Error& why) {
  if (phase_ == Phase::kRunning) act(Action::Kind::kDisconnect);
  fail(why);
}

}  // namespace pbox::worker
