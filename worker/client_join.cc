#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "base/clock.h"
#include "worker/client.h"
#include "worker/fork_guard.h"
#include "worker/session.h"
#include "worker/transport_library.h"
#include "worker/version.h"

namespace pbox::worker {
namespace {

constexpr uint64_t kJoinHeartbeatNs = 1'000'000'000;
// The box ends the gathering at the job's time-out and says who is missing: leave it the time to.
constexpr uint32_t kAnswerMarginMs = 2'000;

}  // namespace

control::WorkerMessage Client::join_message(uint32_t path_mtu) const {
  control::WorkerMessage message;
  control::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(options_.job);
  join.set_rank(options_.rank);
  join.set_world_size(options_.world_size);
  join.set_mode(options_.optimize ? 1 : 0);
  join.set_reduction(options_.mean ? 1 : 0);
  if (options_.optimize) *join.mutable_optimizer() = optimizer_;
  join.set_chunk_bytes(options_.chunk_bytes);
  join.set_path_mtu(options_.path_mtu != 0 ? options_.path_mtu : path_mtu);
  join.set_join_timeout_ms(options_.join_timeout_ms);
  join.set_lost_timeout_ms(options_.lost_timeout_ms);
  join.set_software(std::string("libpbox ") + kVersion);
  for (const TensorSpec& spec : tensors_) {
    control::Tensor& tensor = *join.add_tensors();
    tensor.set_name(spec.name);
    tensor.set_elements(spec.elements);
    tensor.set_dtype(static_cast<uint32_t>(spec.dtype));
    tensor.set_priority(spec.priority);
    tensor.set_lr_scale(spec.lr_scale);
    tensor.set_has_weight_decay(spec.weight_decay >= 0);
    tensor.set_weight_decay(std::max(0.0f, spec.weight_decay));
  }
  return message;
}

Result<control::BoxMessage> Client::await_answer(control::BoxMessage::KindCase kind,
                                                 const std::string& question) {
  ControlChannel& channel = *channel_;
  const uint64_t start_ns = monotonic_ns();
  const uint64_t limit_ns = (uint64_t{options_.join_timeout_ms} + kAnswerMarginMs) * kNanosPerMilli;
  uint64_t heartbeat_ns = start_ns + kJoinHeartbeatNs;
  for (;;) {
    auto messages = channel.receive();
    if (!messages) return messages.error();
    for (auto& message : *messages) {
      if (message.kind_case() == kind) return std::move(message);
      if (message.has_failure()) {
        return Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()};
      }
    }
    const uint64_t now_ns = monotonic_ns();
    if (now_ns - start_ns > limit_ns) {
      return Error{ErrorCode::kTimeout, "box " + options_.box + " did not answer " + question +
                                            " of job '" + options_.job + "' within " +
                                            std::to_string(options_.join_timeout_ms) + " ms"};
    }
    if (now_ns >= heartbeat_ns && kind == control::BoxMessage::kSession) {
      control::WorkerMessage heartbeat;
      heartbeat.mutable_heartbeat();
      if (const Status sent = channel.send(heartbeat); !sent) return sent.error();
      heartbeat_ns = now_ns + kJoinHeartbeatNs;
    }
    const short events = channel.wants_write() ? POLLIN | POLLOUT : POLLIN;
    pollfd wait{channel.fd(), events, 0};
    poll(&wait, 1, 100);
    if (const Status flushed = channel.flush(); !flushed) return flushed.error();
  }
}

// The narrowest path to where data will go.
Result<uint32_t> Client::path_mtu() {
  control::WorkerMessage ask;
  ask.mutable_ask_data_addresses();
  if (const Status sent = channel_->send(ask); !sent) return sent.error();
  const auto answer = await_answer(control::BoxMessage::kDataAddresses, "the worker");
  if (!answer) return answer.error();
  uint32_t narrowest = UINT32_MAX;
  for (const std::string& address : answer->data_addresses().addresses()) {
    nic::Endpoint box = channel_->peer();
    if (!address.empty()) {
      const auto named = nic::parse_endpoint(address, box.port);
      if (!named) return named.error();
      box = *named;
    }
    const auto mtu = transport_->path_mtu(box);
    if (!mtu) return mtu.error();
    narrowest = std::min(narrowest, *mtu);
  }
  return narrowest;
}

// Heartbeats and the box's news while the transport is being opened.
Status Client::tend_channel() {
  const uint64_t now_ns = monotonic_ns();
  if (now_ns >= heartbeat_due_ns_) {
    heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
    control::WorkerMessage heartbeat;
    heartbeat.mutable_heartbeat();
    if (const Status sent = channel_->send(heartbeat); !sent) return sent;
  }
  const auto messages = channel_->receive();
  if (!messages) return messages.error();
  for (const auto& message : *messages) {
    if (message.has_peer_left()) left_ns_.emplace(message.peer_left().rank(), monotonic_ns());
    if (message.has_failure()) {
      return Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()};
    }
  }
  return channel_->flush();
}

Status Client::open_session(const control::Session& session) {
  auto parsed = parse_session(session, tensors_, channel_->peer());
  if (!parsed) return parsed.error();
  SessionSpec spec = std::move(*parsed);
  spec.jitter_seed = std::random_device{}();
  if (options_.window_bytes > 0) spec.window_bytes = options_.window_bytes;
  fragment_bytes_ = spec.fragment_bytes;
  heartbeat_interval_ns_ = std::max(session.heartbeat_interval_ms(), 10u) * kNanosPerMilli;
  dead_after_ns_ = std::max(session.dead_after_ms(), 100u) * kNanosPerMilli;

  const uint64_t deadline_ns = monotonic_ns() + options_.join_timeout_ms * kNanosPerMilli;
  const Status opened = transport_->open(spec, {deadline_ns, [this] { return tend_channel(); }});
  if (!opened) return opened;
  spec.rto_floor_ns = transport_->rto_floor_ns();
  for (uint32_t lane = 0; lane < spec.pipelines.size(); ++lane) {
    SessionSpec::Pipeline& pipeline = spec.pipelines[lane];
    pipeline.first_packet_number = transport_->first_packet_number(lane);
    must_poll_ = must_poll_ || transport_->event_fd(lane) < 0;
    // The window bounds the results in flight too, so it must fit what this side can receive.
    const uint32_t receivable = transport_->receivable_bytes(lane);
    pipeline.credit_bytes = std::min(pipeline.credit_bytes, receivable);
    spec.window_bytes = std::min(spec.window_bytes, receivable);
  }
  core_.emplace(spec, tensors_);
  return ok_status();
}

// Fills the transport, the channel and the core, or leaves them to be thrown away.
Status Client::join_box() {
  auto transport = open_transport(options_.port);
  if (!transport) return transport.error();
  transport_ = std::move(*transport);
  auto channel = ControlChannel::connect(options_.box, options_.join_timeout_ms);
  if (!channel) return channel.error();
  channel_.emplace(std::move(*channel));
  const auto mtu = path_mtu();
  if (!mtu) return mtu.error();
  if (const Status sent = channel_->send(join_message(*mtu)); !sent) return sent;
  const auto answer = await_answer(control::BoxMessage::kSession, "JOIN");
  if (!answer) return answer.error();
  session_ = answer->session();
  return open_session(session_);
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
  if (const Status joined = join_box(); !joined) {
    channel_.reset();  // which tells the box that this rank does not come
    transport_.reset();
    return joined;
  }

  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) return system_error("cannot make an eventfd", errno);
  close_in_child(wake_fd_);
  operations_.resize(tensors_.size());
  heard_ns_ = monotonic_ns();
  phase_ = Phase::kJoined;
  thread_ = std::thread([this] { run_io(); });
  return ok_status();
}

}  // namespace pbox::worker
