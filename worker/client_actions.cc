// What the membership wants done on sockets, and the join that drives it on the caller's thread.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "base/clock.h"
#include "worker/client.h"
#include "worker/fork_guard.h"
#include "worker/transport_library.h"

namespace pbox::worker {

// In order; while the transport is being opened, from within that, only up to what is no message.
void Client::perform_actions() {
  for (;;) {
    auto actions = membership_->take_actions();
    std::move(actions.begin(), actions.end(), std::back_inserter(to_do_));
    if (to_do_.empty() || (opening_ && to_do_.front().kind != Action::Kind::kSend)) return;
    const Action action = std::move(to_do_.front());
    to_do_.pop_front();
    perform(action);
  }
}

void Client::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kConnect: connect(action); return;
    case Action::Kind::kDisconnect: channel_.reset(); return;
    case Action::Kind::kSend:
      if (channel_ && sent_) sent_ = channel_->send(action.message);
      return;
    case Action::Kind::kMeasurePath:
      membership_->on_path_mtu(narrowest_path(action.addresses), monotonic_ns());
      return;
    case Action::Kind::kOpenTransport: {
      const auto facts = open_lanes(action);
      membership_->on_transport_open(facts, monotonic_ns());
      return;
    }
    case Action::Kind::kCloseTransport: transport_.reset(); return;
  }
}

void Client::connect(const Action& action) {
  auto transport = open_transport(options_.port);
  if (!transport) return membership_->on_disconnected(transport.error(), monotonic_ns());
  transport_ = std::move(*transport);
  const uint64_t now_ns = monotonic_ns();
  const uint64_t left_ns = action.deadline_ns > now_ns ? action.deadline_ns - now_ns : 0;
  auto channel =
      ControlChannel::connect(options_.box, static_cast<uint32_t>(left_ns / kNanosPerMilli) + 1);
  if (!channel) return membership_->on_disconnected(channel.error(), monotonic_ns());
  channel_.emplace(std::move(*channel));
  sent_ = ok_status();
  membership_->on_connected(channel_->peer(), monotonic_ns());
}

Result<uint32_t> Client::narrowest_path(const std::vector<nic::Endpoint>& addresses) {
  uint32_t narrowest = UINT32_MAX;
  for (const nic::Endpoint& address : addresses) {
    const auto mtu = transport_->path_mtu(address);
    if (!mtu) return mtu.error();
    narrowest = std::min(narrowest, *mtu);
  }
  return narrowest;
}

Result<TransportFacts> Client::open_lanes(const Action& action) {
  // Ends the opening when the membership wants anything but messages sent: it has given up on it.
  const auto tend = [this]() -> Status {
    pump_control(monotonic_ns());
    const bool joined = membership_->phase() != Membership::Phase::kJoining;  // on the I/O thread
    if (joined && stopping()) return Error{ErrorCode::kClosed, "this worker leaves the job"};
    if (!to_do_.empty()) return Error{ErrorCode::kClosed, "the control connection is gone"};
    return ok_status();
  };
  opening_ = true;
  const Status opened = transport_->open(action.session, {action.deadline_ns, tend});
  opening_ = false;
  if (!opened) return opened.error();
  TransportFacts facts;
  facts.rto_floor_ns = transport_->rto_floor_ns();
  must_poll_ = false;
  for (uint32_t lane = 0; lane < action.session.pipelines.size(); ++lane) {
    facts.lanes.push_back(
        {transport_->first_packet_number(lane), transport_->receivable_bytes(lane)});
    must_poll_ = must_poll_ || transport_->event_fd(lane) < 0;
  }
  return facts;
}

// What the box says, and what time demands.
void Client::pump_control(uint64_t now_ns) {
  perform_actions();
  if (channel_) {
    speak_for_transport();
    if (sent_) sent_ = channel_->flush();
    const auto messages = channel_->receive();
    if (messages) {
      for (const auto& message : *messages) {
        if (message.has_queue_pairs() && transport_) transport_->on_answer(message.queue_pairs());
        membership_->on_message(message, now_ns);
      }
    }
    // A FAILURE that arrived says more than the broken connection behind it.
    if (!messages) {
      membership_->on_disconnected(messages.error(), now_ns);
    } else if (!sent_) {
      membership_->on_disconnected(sent_.error(), now_ns);
    }
  }
  membership_->on_time(now_ns);
  perform_actions();
}

void Client::speak_for_transport() {
  control::WorkerMessage message;
  if (!transport_ || !sent_ || !transport_->take_request(*message.mutable_queue_pairs())) return;
  sent_ = channel_->send(message);
}

// Until the control connection has something, or the membership, or limit_ns has come.
void Client::await_control(uint64_t limit_ns) {
  const uint64_t until_ns = std::min(membership_->next_deadline_ns(), limit_ns);
  const uint64_t now_ns = monotonic_ns();
  const uint64_t wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  pollfd wait{channel_ ? channel_->fd() : -1, POLLIN, 0};
  if (channel_ && channel_->wants_write()) wait.events |= POLLOUT;
  poll(&wait, 1, static_cast<int>(wait_ns / kNanosPerMilli) + 1);
}

Status Client::join() {
  const std::unique_lock lock(mutex_);
  if (const Status status = usable(Phase::kNew); !status) return status.error();
  if (tensors_.empty()) {
    return Error{ErrorCode::kInvalidArgument, "no tensor is registered; register before joining"};
  }
  if (options_.optimize && optimizer_.kind() == 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "mode optimize needs an optimizer; call pbox_set_optimizer before joining"};
  }
  options_.seed = std::random_device{}();
  membership_.emplace(options_, tensors_, optimizer_);
  membership_->begin(monotonic_ns());
  perform_actions();
  while (membership_->phase() == Membership::Phase::kJoining) {
    constexpr uint64_t kLookNs = 100'000'000;
    await_control(monotonic_ns() + kLookNs);
    pump_control(monotonic_ns());
  }
  if (membership_->failure()) return *membership_->failure();

  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return system_error("cannot make an eventfd", errno);
  close_in_child(wake_fd_);
  session_ = membership_->session();
  operations_.resize(tensors_.size());
  for (uint32_t tensor = 0; tensor < operations_.size(); ++tensor) {
    operations_[tensor].round = membership_->core()->round(tensor);
  }
  absent_ranks_ = membership_->absent_ranks();
  phase_ = Phase::kJoined;
  thread_ = std::thread([this] { run_io(); });
  return ok_status();
}

}  // namespace pbox::worker
