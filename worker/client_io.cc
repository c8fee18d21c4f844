#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/cpu_set.h"
#include "worker/client.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kLivenessIntervalNs = 50'000'000;
constexpr uint64_t kLeaveLimitNs = 1'000'000'000;
// Of a transport that must be polled: a round trip on such a network fits well into the spin, and a
// nap that short still leaves the core to others for most of the time.
constexpr uint64_t kSpinNs = 50'000;
constexpr uint64_t kNapNs = 50'000;
constexpr uint64_t kNapMaxNs = 1'000'000;

}  // namespace

void Client::run_io() {
  name_current_thread("pbox-io");
  sigset_t all;  // signals belong to the application's threads
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  if (must_poll_) prctl(PR_SET_TIMERSLACK, 1);  // else naps are twice as long as asked for
  for (;;) {
    const uint64_t now_ns = monotonic_ns();
    take_requests();
    const bool busy = exchange_packets(now_ns);
    if (auto completed = core_->take_completed(); !completed.empty()) complete(completed);
    const bool idle = !busy && !may_spin(now_ns);
    if (now_ns >= liveness_due_ns_ || idle) serve_control(now_ns);
    if (stopping()) return finish_io();
    if (idle) rest(now_ns);
  }
}

bool Client::stopping() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

// Says LEAVE, within reason, and completes what is still in flight.
void Client::finish_io() {
  const uint64_t limit_ns = monotonic_ns() + kLeaveLimitNs;
  serve_control(monotonic_ns());
  while (channel_->wants_write() && monotonic_ns() < limit_ns) {
    pollfd wait{channel_->fd(), POLLOUT, 0};
    poll(&wait, 1, 10);
    if (!channel_->flush()) break;
  }
  fail({ErrorCode::kClosed, {}});
  const std::lock_guard lock(mutex_);
  for (const auto* call : calls_) (*call)();
  calls_.clear();
  io_done_ = true;
  changed_.notify_all();
}

bool Client::exchange_packets(uint64_t now_ns) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  bool busy = false;
  bool received_any = false;
  for (uint32_t lane = 0; lane < core_->pipeline_count(); ++lane) {
    const size_t received = transport_->rx_burst(lane, burst);
    if (received > 0) core_->on_burst(lane, {burst.data(), received}, now_ns);
    received_any = received_any || received > 0;
    const auto packets = core_->to_send(lane, now_ns);
    size_t sent = 0;
    if (!packets.empty()) {
      sent = transport_->tx_burst(lane, packets);
      core_->sent(lane, sent, now_ns);
    }
    busy = busy || received > 0 || sent > 0;
  }
  // An answer that waits in the socket is not late: timers count only when nothing waits.
  if (!received_any) core_->on_timer(now_ns);
  if (busy) busy_ns_ = now_ns;
  return busy;
}

void Client::take_requests() {
  std::vector<uint32_t> submitted;
  std::vector<Exchange> exchanges;
  {
    const std::lock_guard lock(mutex_);
    if (submitted_.empty() && calls_.empty()) return;
    submitted.swap(submitted_);
    for (const uint32_t tensor : submitted) exchanges.push_back(operations_[tensor].exchange);
    for (const auto* call : calls_) (*call)();
    if (!calls_.empty()) changed_.notify_all();
    calls_.clear();
    if (failure_) return;  // fail() has completed them
  }
  for (const Exchange& exchange : exchanges) {
    core_->start(exchange.tensor, static_cast<const std::byte*>(exchange.input),
                 static_cast<std::byte*>(exchange.output),
                 exchange.priority.value_or(tensors_[exchange.tensor].priority));
  }
}

void Client::complete(const std::vector<uint32_t>& tensors) {
  std::vector<Finished> finished;
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t tensor : tensors) {
      Operation& operation = operations_[tensor];
      if (!operation.pending) continue;
      operation.pending = false;
      operation.status = ErrorCode::kOk;
      if (operation.exchange.initial_weights) operation.initialised = true;
      ++completed_;
      finished.push_back(
          {operation.exchange.callback, operation.exchange.user, tensor, ErrorCode::kOk});
    }
    changed_.notify_all();
  }
  run_callbacks(finished);
}

void Client::run_callbacks(const std::vector<Finished>& finished) {
  for (const Finished& one : finished) {
    if (one.callback != nullptr) one.callback(one.user, one.tensor, static_cast<int>(one.status));
  }
}

// The job is over for this worker: everything in flight is completed with the reason, and every
// later call returns it.
void Client::fail(Error error) {
  std::vector<Finished> finished;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    // A box closes the connection of whoever has left.
    if (phase_ == Phase::kLeft) error = {ErrorCode::kClosed, "this worker has left the job"};
    failure_ = error;
    last_error_ = error.message;
    for (uint32_t tensor = 0; tensor < operations_.size(); ++tensor) {
      Operation& operation = operations_[tensor];
      if (!operation.pending) continue;
      operation.pending = false;
      operation.status = error.code;
      ++failed_;
      finished.push_back(
          {operation.exchange.callback, operation.exchange.user, tensor, error.code});
    }
    submitted_.clear();
    outgoing_.clear();
    core_->abandon();  // the buffers are the callers' again
    changed_.notify_all();
  }
  run_callbacks(finished);
}

void Client::serve_control(uint64_t now_ns) {
  std::vector<control::WorkerMessage> outgoing;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    outgoing.swap(outgoing_);
  }
  if (now_ns >= heartbeat_due_ns_) {
    heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
    outgoing.emplace_back().mutable_heartbeat()->set_sequence(now_ns);
  }
  Status status = channel_->flush();
  for (const auto& message : outgoing) {
    if (status) status = channel_->send(message);
  }
  auto messages = channel_->receive();
  if (messages) {
    if (!messages->empty()) heard_ns_ = now_ns;
    for (const auto& message : *messages) on_message(message);
  }
  // A FAILURE that arrived says more than the broken connection behind it.
  if (!messages) {
    fail(messages.error());
  } else if (!status) {
    fail(status.error());
  }
  if (now_ns >= liveness_due_ns_) {
    liveness_due_ns_ = now_ns + kLivenessIntervalNs;
    check_liveness(now_ns);
  }
}

void Client::on_message(const control::BoxMessage& message) {
  switch (message.kind_case()) {
    case control::BoxMessage::kFailure:
      fail({static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
      return;
    case control::BoxMessage::kPeerLeft:
      left_ns_.emplace(message.peer_left().rank(), monotonic_ns());
      return;
    case control::BoxMessage::kBarrierReleased: {
      const std::lock_guard lock(mutex_);
      barrier_released_ = std::max(barrier_released_, message.barrier_released().sequence());
      changed_.notify_all();
      return;
    }
    case control::BoxMessage::kLearningRateSet: {
      const std::lock_guard lock(mutex_);
      learning_rate_set_ = std::max(learning_rate_set_, message.learning_rate_set().sequence());
      changed_.notify_all();
      return;
    }
    default: return;  // heartbeats, and kinds that a newer box knows
  }
}

void Client::check_liveness(uint64_t now_ns) {
  if (now_ns > heard_ns_ && now_ns - heard_ns_ > dead_after_ns_) {
    fail({ErrorCode::kBoxLost,
          "box " + options_.box + " has not answered for " + in_seconds(now_ns - heard_ns_)});
    return;
  }
  if (left_ns_.empty()) return;
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

// An answer that only polling finds is looked for without pause just after packets have moved.
bool Client::may_spin(uint64_t now_ns) const {
  return must_poll_ && core_->awaits_results() && now_ns - busy_ns_ < kSpinNs;
}

// How long nothing is missed: what a lane without a descriptor receives is found by the next look.
uint64_t Client::rest_limit_ns(uint64_t now_ns) {
  uint64_t until_ns = std::min(core_->next_deadline_ns(), liveness_due_ns_);
  until_ns = std::min(until_ns, now_ns + kLivenessIntervalNs);
  const uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  if (!must_poll_) return wait_ns;
  const bool may_grow = !core_->awaits_results() && now_ns - busy_ns_ > kSpinNs;
  nap_ns_ = may_grow ? std::clamp(2 * nap_ns_, kNapNs, kNapMaxNs) : kNapNs;
  return std::min(wait_ns, nap_ns_);
}

void Client::rest(uint64_t now_ns) {
  {
    const std::lock_guard lock(mutex_);
    if (!submitted_.empty() || !calls_.empty() || !outgoing_.empty()) return;
  }
  const uint64_t wait_ns = rest_limit_ns(now_ns);
  std::vector<pollfd> waits;
  waits.push_back({wake_fd_, POLLIN, 0});
  bool broken = false;
  {
    const std::lock_guard lock(mutex_);
    broken = failure_.has_value();
  }
  if (!broken) {
    const short events = channel_->wants_write() ? POLLIN | POLLOUT : POLLIN;
    waits.push_back({channel_->fd(), events, 0});
    for (uint32_t lane = 0; lane < core_->pipeline_count(); ++lane) {
      const bool blocked = core_->has_unsent(lane);
      // ppoll leaves out what has no descriptor (-1).
      waits.push_back(
          {transport_->event_fd(lane), static_cast<short>(blocked ? POLLIN | POLLOUT : POLLIN), 0});
    }
  }
  timespec timeout{static_cast<time_t>(wait_ns / kNanosPerSecond),
                   static_cast<long>(wait_ns % kNanosPerSecond)};
  if (ppoll(waits.data(), waits.size(), &timeout, nullptr) > 0 && waits[0].revents != 0) {
    uint64_t drained = 0;
    while (read(wake_fd_, &drained, sizeof(drained)) < 0 && errno == EINTR) {
    }
  }
}

void Client::wake() {
  const uint64_t one = 1;
  while (write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

}  // namespace pbox::worker
