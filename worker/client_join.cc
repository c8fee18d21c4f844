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

namespace pbox::worker {
namespace {

constexpr char kSoftware[] = "libpbox 0.1.0";
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
  join.set_software(kSoftware);
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

Result<uint32_t> Client::path_mtu(const nic::Endpoint& box) const {
  nic::Endpoint local;
  local.ipv6 = box.ipv6;
  const auto probe = nic::SocketPort::open({.local = local, .remote = box});
  if (!probe) return probe.error();
  return probe->capabilities().mtu;
}

Result<control::Session> Client::await_session(ControlChannel& channel) {
  const uint64_t start_ns = monotonic_ns();
  const uint64_t limit_ns = (uint64_t{options_.join_timeout_ms} + kAnswerMarginMs) * kNanosPerMilli;
  uint64_t heartbeat_ns = start_ns + kJoinHeartbeatNs;
  for (;;) {
    auto messages = channel.receive();
    if (!messages) return messages.error();
    for (const auto& message : *messages) {
      if (message.has_session()) return message.session();
      if (message.has_failure()) {
        return Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()};
      }
    }
    const uint64_t now_ns = monotonic_ns();
    if (now_ns - start_ns > limit_ns) {
      return Error{ErrorCode::kTimeout, "box " + options_.box + " did not answer JOIN of job '" +
                                            options_.job + "' within " +
                                            std::to_string(options_.join_timeout_ms) + " ms"};
    }
    if (now_ns >= heartbeat_ns) {
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

Status Client::open_session(const control::Session& session) {
  auto parsed = parse_session(session, tensors_);
  if (!parsed) return parsed.error();
  SessionSpec spec = std::move(*parsed);
  spec.jitter_seed = std::random_device{}();
  if (options_.window_bytes > 0) spec.window_bytes = options_.window_bytes;

  for (const auto& pipeline : session.pipelines()) {
    nic::Endpoint box = channel_->peer();
    if (!pipeline.address().empty()) {
      const auto named = nic::parse_endpoint(pipeline.address(), 0);
      if (!named) return named.error();
      box = *named;
    }
    box.port = static_cast<uint16_t>(pipeline.udp_port());
    nic::Endpoint local;
    local.ipv6 = box.ipv6;
    auto port = nic::SocketPort::open({.local = local, .remote = box});
    if (!port) return port.error();
    close_in_child(port->event_fd());
    // The window bounds the results in flight too, so it must fit this side's receive buffer.
    const uint32_t receivable = port->capabilities().receive_buffer_bytes / 4 * 3;
    spec.pipelines.push_back({pipeline.spi(), std::min(pipeline.credit_bytes(), receivable), box});
    spec.window_bytes = std::min(spec.window_bytes, receivable);
    ports_.push_back(std::move(*port));
  }
  fragment_bytes_ = spec.fragment_bytes;
  heartbeat_interval_ns_ = std::max(session.heartbeat_interval_ms(), 10u) * kNanosPerMilli;
  dead_after_ns_ = std::max(session.dead_after_ms(), 100u) * kNanosPerMilli;
  core_.emplace(spec, tensors_);
  return ok_status();
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
  auto channel = ControlChannel::connect(options_.box, options_.join_timeout_ms);
  if (!channel) return channel.error();
  const auto mtu = path_mtu(channel->peer());
  if (!mtu) return mtu.error();
  if (const Status sent = channel->send(join_message(*mtu)); !sent) return sent.error();
  const auto session = await_session(*channel);
  if (!session) return session.error();
  session_ = *session;
  channel_.emplace(std::move(*channel));
  if (const Status opened = open_session(*session); !opened) return opened.error();

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
