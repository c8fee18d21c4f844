#include "tests/sim/worker.h"

#include <algorithm>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "tests/sim/violation.h"
#include "worker/session.h"

namespace pbox::sim {
namespace {

constexpr uint16_t kFirstPort = 20'000;
constexpr uint64_t kTurnNs = 2'000;
constexpr uint64_t kSlowTurnNs = 200'000;

std::vector<worker::TensorSpec> tensors_of(const JobOptions& job) {
  std::vector<worker::TensorSpec> tensors;
  for (const TensorOptions& tensor : job.tensors) {
    tensors.push_back({.name = std::to_string(tensors.size()) + ".weight",
                       .elements = tensor.elements,
                       .dtype = job.dtype,
                       .priority = tensor.priority});
  }
  return tensors;
}

}  // namespace

Worker::Worker(Rack& rack, JobModel& job, uint32_t rank)
    : rack_(rack),
      job_(job),
      rank_(rank),
      host_(job.first_host + rank),
      thread_(rack.queue, [this] { turn(); }),
      application_(job, rank, rack.options.seed * 1000 + host_),
      tensors_(tensors_of(job.options)) {
  rack.control.attach(host_, *this);
}

void Worker::start() {
  connection_ = rack_.control.connect(host_, job_.options.box);
}

void Worker::send(const control::WorkerMessage& message) {
  const auto framed = wire::frame(message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(connection_, host_, framed->substr(wire::kControlLengthBytes));
}

void Worker::on_connected(ConnectionId) {
  join();
}

void Worker::join() {
  const JobOptions& options = job_.options;
  control::WorkerMessage message;
  control::Join& join = *message.mutable_join();
  join.set_protocol_version(wire::kControlProtocolVersion);
  join.set_job(job_.name);
  join.set_rank(rank_);
  join.set_world_size(options.workers);
  join.set_mode(static_cast<uint32_t>(options.mode));
  join.set_reduction(static_cast<uint32_t>(options.reduction));
  const optimizer::OptimizerSpec spec = optimizer_of(options);
  join.mutable_optimizer()->set_kind(static_cast<uint32_t>(spec.kind));
  join.mutable_optimizer()->set_learning_rate(spec.learning_rate);
  join.mutable_optimizer()->set_momentum(spec.momentum);
  join.mutable_optimizer()->set_beta1(spec.beta1);
  join.mutable_optimizer()->set_beta2(spec.beta2);
  join.mutable_optimizer()->set_epsilon(spec.epsilon);
  join.mutable_optimizer()->set_weight_decay(spec.weight_decay);
  join.set_chunk_bytes(options.chunk_bytes);
  join.set_path_mtu(options.path_mtu);
  for (const worker::TensorSpec& spec_of_tensor : tensors_) {
    control::Tensor& tensor = *join.add_tensors();
    tensor.set_name(spec_of_tensor.name);
    tensor.set_elements(spec_of_tensor.elements);
    tensor.set_dtype(static_cast<uint32_t>(spec_of_tensor.dtype));
    tensor.set_priority(spec_of_tensor.priority);
    tensor.set_lr_scale(spec_of_tensor.lr_scale);
  }
  send(message);
}

void Worker::on_control_message(ConnectionId, const std::string& body) {
  control::BoxMessage message;
  require(message.ParseFromString(body), "a box sent what is no control message");
  if (message.has_session()) {
    open_session(message.session());
  } else if (message.has_failure()) {
    fail({static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
  }
}

void Worker::open_session(const control::Session& session) {
  auto parsed = worker::parse_session(session, tensors_, endpoint_of(job_.options.box, 0));
  require(parsed.ok(), [&] { return "SESSION was not understood: " + parsed.error().message; });
  worker::SessionSpec spec = std::move(*parsed);
  spec.jitter_seed = rack_.options.seed * 77 + host_;
  spec.rto_floor_ns = rack_.options.rto_floor_ns;
  spec.window_bytes = std::min(spec.window_bytes, job_.options.window_bytes);
  heartbeat_interval_ns_ = session.heartbeat_interval_ms() * kNanosPerMilli;
  heartbeat_due_ns_ = thread_.now_ns();
  for (uint32_t index = 0; index < spec.pipelines.size(); ++index) {
    Lane& lane = lanes_.emplace_back();
    lane.local = endpoint_of(host_, static_cast<uint16_t>(kFirstPort + index));
    ReceiveRing& ring =
        rack_.network.open(lane.local, {.on_arrival = [this] { thread_.wake_soon(); }});
    lane.port =
        std::make_unique<SimPort>(rack_.network, lane.local, ring, rack_.options.burst_packets);
    lane.credit = std::make_unique<CreditWatch>(spec, index, job_);
  }
  core_ = std::make_unique<worker::Core>(spec, tensors_);
  thread_.wake_soon();
}

bool Worker::exchange(uint32_t index, uint64_t now_ns) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  Lane& lane = lanes_[index];
  lane.port->set_burst_packets(slow_ ? 1 : rack_.options.burst_packets);
  const size_t received = lane.port->rx_burst(burst);
  if (received > 0) {
    lane.credit->received(lane.port->held());
    core_->on_burst(index, {burst.data(), received}, now_ns);
  }
  const auto packets = core_->to_send(index, now_ns);
  if (!packets.empty()) {
    lane.credit->sent(packets);
    core_->sent(index, lane.port->tx_burst(packets), now_ns);
  }
  return received > 0 || !packets.empty();
}

// As the client's I/O thread: packets of all lanes, timers only when nothing came.
void Worker::turn() {
  if (core_ == nullptr || over_) return;
  const uint64_t now_ns = thread_.now_ns();
  const uint64_t next_start_ns = application_.start_due(*core_, now_ns, rack_.queue.now_ns());
  bool busy = false;
  bool received = false;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const uint64_t before = lanes_[lane].port->packets_given();
    busy = exchange(lane, now_ns) || busy;
    received = received || lanes_[lane].port->packets_given() != before;
  }
  if (!received) core_->on_timer(now_ns);
  const auto completed = core_->take_completed();
  for (const uint32_t tensor : completed) application_.completed(tensor, now_ns);
  if (now_ns >= heartbeat_due_ns_) {
    heartbeat_due_ns_ = now_ns + heartbeat_interval_ns_;
    control::WorkerMessage message;
    message.mutable_heartbeat()->set_sequence(now_ns);
    send(message);
  }
  if (application_.done()) return leave();
  if (busy || !completed.empty()) {
    thread_.wake_at(now_ns + (slow_ ? kSlowTurnNs : kTurnNs));
  } else {
    thread_.wake_at(std::max(now_ns + 1, core_->next_deadline_ns()));
  }
  thread_.wake_at(next_start_ns);
  thread_.wake_at(heartbeat_due_ns_);
}

void Worker::leave() {
  control::WorkerMessage message;
  message.mutable_leave();
  send(message);
  over_ = true;
  close_lanes();
}

void Worker::close_lanes() {
  for (const Lane& lane : lanes_) rack_.network.close(lane.local);
  lanes_.clear();
}

void Worker::fail(const Error& error) {
  if (over_) return;
  failure_ = error;
  over_ = true;
  if (core_ != nullptr) core_->abandon();
  close_lanes();
}

void Worker::on_closed(ConnectionId, const std::string& reason) {
  fail({ErrorCode::kBoxLost, reason});
}

void Worker::pause(uint64_t length_ns) {
  thread_.pause(length_ns);
  rack_.control.stall(host_, rack_.queue.now_ns() + length_ns);
}

}  // namespace pbox::sim
