#include "worker/membership.h"

#include <algorithm>

#include "base/clock.h"

namespace pbox::worker {
namespace {

// Between two looks at whether anything waits for a rank that has left.
constexpr uint64_t kPeersIntervalNs = 50'000'000;

}  // namespace

Membership::Membership(MembershipOptions options, std::vector<TensorSpec> tensors,
                       control::Optimizer optimizer)
    : options_(std::move(options)),
      tensors_(std::move(tensors)),
      optimizer_(std::move(optimizer)) {}

Action& Membership::act(Action::Kind kind) {
  Action& action = actions_.emplace_back();
  action.kind = kind;
  return action;
}

control::WorkerMessage& Membership::send() {
  return act(Action::Kind::kSend).message;
}

void Membership::send_heartbeat(uint64_t now_ns) {
  heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
  send().mutable_heartbeat()->set_sequence(now_ns);
}

// The buffers of whatever is in flight are the application's again.
void Membership::end(Phase phase, Error error) {
  if (is_over()) return;
  if (phase_ == Phase::kJoining) {  // which tells the box that this rank does not come
    act(Action::Kind::kDisconnect);
    act(Action::Kind::kCloseTransport);
  }
  phase_ = phase;
  failure_ = std::move(error);
  if (core_) core_->abandon();
}

void Membership::on_disconnected(const Error& why, uint64_t /*now_ns*/) {
  fail(why);
}

void Membership::on_message(const control::BoxMessage& message, uint64_t now_ns) {
  if (is_over()) return;
  heard_ns_ = now_ns;
  switch (message.kind_case()) {
    case control::BoxMessage::kFailure:
      fail({static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
      return;
    case control::BoxMessage::kDataAddresses: on_data_addresses(message.data_addresses()); return;
    case control::BoxMessage::kSession: on_session(message.session(), now_ns); return;
    case control::BoxMessage::kPeerLeft:
      left_ns_.emplace(message.peer_left().rank(), now_ns);
      return;
    case control::BoxMessage::kBarrierReleased:
      barriers_released_ = std::max(barriers_released_, message.barrier_released().sequence());
      return;
    case control::BoxMessage::kLearningRateSet:
      learning_rates_set_ = std::max(learning_rates_set_, message.learning_rate_set().sequence());
      return;
    default: return;  // heartbeats, and kinds that a newer box knows
  }
}

void Membership::on_time(uint64_t now_ns) {
  if (phase_ == Phase::kJoining) check_join(now_ns);
  if (phase_ == Phase::kRunning) check_liveness(now_ns);
  if (!is_over() && now_ns >= heartbeat_due_ns_) send_heartbeat(now_ns);
}

uint64_t Membership::next_deadline_ns() const {
  if (is_over()) return UINT64_MAX;
  if (phase_ != Phase::kRunning) return std::min(step_deadline_ns_, heartbeat_due_ns_);
  const uint64_t silent_ns = heard_ns_ + dead_after_ns_ + 1;
  return std::min({silent_ns, left_ns_.empty() ? UINT64_MAX : peers_due_ns_, heartbeat_due_ns_});
}

void Membership::check_liveness(uint64_t now_ns) {
  if (now_ns > heard_ns_ && now_ns - heard_ns_ > dead_after_ns_) {
    fail({ErrorCode::kBoxLost,
          "box " + options_.box + " has not answered for " + in_seconds(now_ns - heard_ns_)});
    return;
  }
  if (left_ns_.empty() || now_ns < peers_due_ns_) return;
  peers_due_ns_ = now_ns + kPeersIntervalNs;
  for (uint32_t tensor = 0; tensor < core_->tensor_count(); ++tensor) {
    const Laggard laggard = core_->laggard(tensor, now_ns);
    if (laggard.kind != Laggard::Kind::kRank) continue;
    // An answer from before may be out of date: the rank pushed, and what got lost is the result.
    const auto left = left_ns_.find(laggard.rank);
    if (left == left_ns_.end() || laggard.asked_ns <= left->second) continue;
    fail({ErrorCode::kWorkerLost, "rank " + std::to_string(laggard.rank) +
                                      " left the job without pushing tensor '" +
                                      tensors_[tensor].name + "', which this rank waits for"});
    return;
  }
}

void Membership::start(uint32_t tensor, const std::byte* input, std::byte* output,
                       int32_t priority) {
  if (!is_over()) core_->start(tensor, input, output, priority);
}

void Membership::ask_barrier() {
  if (is_over()) return;
  send().mutable_barrier()->set_sequence(++barriers_asked_);
}

void Membership::ask_learning_rate(float learning_rate) {
  if (is_over()) return;
  auto& request = *send().mutable_set_learning_rate();
  request.set_learning_rate(learning_rate);
  request.set_sequence(++learning_rates_asked_);
}

void Membership::leave() {
  if (is_over()) return;
  if (phase_ == Phase::kRunning) send().mutable_leave();
  end(Phase::kLeft, {ErrorCode::kClosed, "this worker has left the job"});
}

}  // namespace pbox::worker
