#include "tests/sim/worker.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "tests/sim/violation.h"

namespace pbox::sim {
namespace {

constexpr uint16_t kFirstPort = 20'000;
constexpr uint32_t kJoinTimeoutMs = 60'000;
constexpr uint64_t kSupervisorNs = 300 * kNanosPerMilli;
constexpr uint32_t kStartsMax = 1000;
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

control::Optimizer optimizer_message(const JobOptions& job) {
  const optimizer::OptimizerSpec spec = optimizer_of(job);
  control::Optimizer message;
  message.set_kind(static_cast<uint32_t>(spec.kind));
  message.set_learning_rate(spec.learning_rate);
  message.set_momentum(spec.momentum);
  message.set_beta1(spec.beta1);
  message.set_beta2(spec.beta2);
  message.set_epsilon(spec.epsilon);
  message.set_weight_decay(spec.weight_decay);
  return message;
}

worker::MembershipOptions membership_options(const Rack& rack, const JobModel& job, uint32_t rank,
                                             uint32_t incarnation) {
  const JobOptions& options = job.options;
  worker::MembershipOptions membership;
  membership.job = job.name;
  // Whoever starts a worker asks first; what it hears may be out of date when the worker comes.
  const HostId box = rack.parts.owner(job.name);
  membership.box = address_of_box(box);
  membership.box_name = "box" + std::to_string(box);
  for (HostId other = 0; options.may_move && other < rack.options.boxes; ++other) {
    membership.boxes.push_back(address_of_box(other));
  }
  membership.rank = rank;
  membership.world_size = options.workers;
  membership.optimize = options.mode == pipeline::Mode::kOptimize;
  membership.mean = options.reduction == pipeline::Reduction::kMean;
  membership.chunk_bytes = options.chunk_bytes;
  membership.window_bytes = options.window_bytes;
  membership.join_timeout_ms = kJoinTimeoutMs;
  membership.lost_timeout_ms = options.lost_timeout_ms();
  membership.recover_timeout_ms = options.recover_timeout_ms();
  membership.recovery = static_cast<worker::Recovery>(options.recovery);
  membership.on_worker_lost = static_cast<worker::LostPolicy>(options.on_worker_lost);
  membership.priority_policy = options.priority_policy;
  membership.delivery = options.delivery;
  membership.numerics = options.numerics;
  membership.sync = options.sync;
  membership.incarnation = uint64_t{job.first_host + rank} << 32 | incarnation;
  membership.seed = rack.options.seed * 77 + membership.incarnation;
  return membership;
}

std::string describe(const wire::Header& header) {
  char text[96];
  std::snprintf(text, sizeof(text), "type %u epoch %u generation %u chunk %u round %u fragment %u",
                header.type_value(), header.epoch, header.generation, header.chunk, header.round,
                header.fragment);
  return text;
}

std::string describe(const std::vector<std::byte>& bytes) {
  wire::Header header;
  if (bytes.size() < sizeof(header)) return "too little";
  std::memcpy(&header, bytes.data(), sizeof(header));
  return describe(header);
}

// The lite runtime prints no messages.
template <typename Message>
std::string describe(const Message& message) {
  std::string text = "message " + std::to_string(message.kind_case()) + " of " +
                     std::to_string(message.ByteSizeLong()) + " bytes";
  if (!message.has_rounds()) return text;
  text += ", rounds";
  for (const uint32_t round : message.rounds().rounds()) {
    text.append(" ").append(std::to_string(round));
  }
  return text;
}

}  // namespace

std::unique_ptr<worker::Membership> make_membership(const Rack& rack, const JobModel& job,
                                                    uint32_t rank, uint32_t incarnation,
                                                    bool rejoins) {
  worker::MembershipOptions options = membership_options(rack, job, rank, incarnation);
  options.rejoin = rejoins;
  return std::make_unique<worker::Membership>(options, tensors_of(job.options),
                                              optimizer_message(job.options));
}

Worker::Worker(Rack& rack, JobModel& job, uint32_t rank)
    : rack_(rack),
      job_(job),
      rank_(rank),
      host_(job.first_host + rank),
      thread_(rack.queue, [this] { turn(); }) {
  rack.control.attach(host_, *this);
}

std::string Worker::who() const {
  return job_.name + " rank " + std::to_string(rank_);
}

void Worker::start() {
  if (over_ || membership_ != nullptr) return;  // brought up early, after a crash before its time
  rack_.say(who(), [&] { return "starts"; });
  ++starts_;
  started_ns_ = rack_.queue.now_ns();
  barrier_asked_ = is_placed_ = false;
  failure_.reset();
  application_.emplace(job_, rank_, rack_.options.seed * 1000 + host_);
  membership_ = make_membership(rack_, job_, rank_, starts_, has_been_in_);
  membership_->begin(thread_.now_ns());
  perform();
}

void Worker::crash(bool silently) {
  if (over_ || membership_ == nullptr) return;
  rack_.say(who(), [&] { return "crashes"; });
  rack_.control.abort_all(host_, silently);
  connection_ = 0;
  close_lanes();
  membership_.reset();
  job_.forget(rank_);
}

uint64_t Worker::waits_since_ns() const {
  if (over_) return UINT64_MAX;
  if (!joined()) return started_ns_;
  return barrier_asked_ ? barrier_asked_ns_ : application_->oldest_start_ns();
}

void Worker::perform() {
  auto actions = membership_->take_actions();
  for (worker::Action& action : actions) perform(action);
  end_if_over();
  thread_.wake_soon();
}

void Worker::perform(worker::Action& action) {
  using Kind = worker::Action::Kind;
  switch (action.kind) {
    case Kind::kConnect: connect(action); return;
    case Kind::kDisconnect:
      if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), host_);
      return;
    case Kind::kSend: send(action.message); return;
    case Kind::kMeasurePath:
      rack_.queue.after(rack_.options.latency_ns, [this, membership = membership_.get()] {
        if (membership != membership_.get()) return;
        membership_->on_path_mtu(job_.options.path_mtu, thread_.now_ns());
        perform();
      });
      return;
    case Kind::kOpenTransport:
      job_.give_back(action.session.give, action.session.open_rounds);
      open_lanes(action.session);
      rack_.queue.after(rack_.options.latency_ns, [this, transport = transport_] {
        if (transport != transport_ || lanes_.empty()) return;
        worker::TransportFacts facts;
        facts.rto_floor_ns = rack_.options.rto_floor_ns;
        facts.lanes.resize(lanes_.size(), {.receivable_bytes = UINT32_MAX});
        membership_->on_transport_open(facts, thread_.now_ns());
        perform();
      });
      return;
    case Kind::kCloseTransport: close_lanes(); return;
  }
}

void Worker::connect(const worker::Action& action) {
  box_ = box_at(action.box);
  connection_ = rack_.control.connect(host_, box_);
  is_connected_ = false;
  const uint64_t now_ns = thread_.now_ns();
  rack_.queue.after(
      action.deadline_ns - std::min(action.deadline_ns, now_ns), [this, id = connection_] {
        if (id != connection_ || is_connected_) return;
        rack_.control.close(std::exchange(connection_, 0), host_);
        membership_->on_disconnected({ErrorCode::kUnavailable, "no answer"}, thread_.now_ns());
        perform();
      });
}

void Worker::send(const control::WorkerMessage& message) {
  rack_.say(who(), [&] { return "says " + describe(message); });
  const auto framed = wire::frame(message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(connection_, host_, framed->substr(wire::kControlLengthBytes));
}

void Worker::on_connected(ConnectionId id) {
  if (id != connection_) return;
  is_connected_ = true;
  membership_->on_connected(endpoint_of(box_, limits::kControlPort), thread_.now_ns());
  perform();
}

void Worker::on_control_message(ConnectionId id, const std::string& body) {
  if (id != connection_) return;
  control::BoxMessage message;
  require(message.ParseFromString(body), "a box sent what is no control message");
  rack_.say(who(), [&] { return "hears " + describe(message); });
  membership_->on_message(message, thread_.now_ns());
  perform();
}

void Worker::on_closed(ConnectionId id, const std::string& reason) {
  if (id != connection_) return;
  connection_ = 0;
  rack_.say(who(), [&] { return "is disconnected: " + reason; });
  membership_->on_disconnected({ErrorCode::kBoxLost, reason}, thread_.now_ns());
  perform();
}

void Worker::open_lanes(const worker::SessionSpec& session) {
  ++transport_;
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    Lane& lane = lanes_.emplace_back();
    lane.local = endpoint_of(host_, static_cast<uint16_t>(kFirstPort + index));
    ReceiveRing& ring =
        rack_.network.open(lane.local, {.on_arrival = [this] { thread_.wake_soon(); }});
    lane.port = std::make_unique<SimPort>(rack_.network, lane.local, ring, rack_.options);
    lane.credit = std::make_unique<CreditWatch>(session, index, job_);
  }
}

void Worker::close_lanes() {
  for (const Lane& lane : lanes_) rack_.network.close(lane.local);
  lanes_.clear();
}

bool Worker::exchange(uint32_t index, uint64_t now_ns) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  Lane& lane = lanes_[index];
  worker::Core& core = *membership_->core();
  lane.credit->set_generation(membership_->session().generation());
  lane.port->set_burst_packets(slow_ ? 1 : rack_.options.burst_packets);
  const size_t received = lane.port->rx_burst(burst);
  if (received > 0) {
    lane.credit->received(lane.port->held());
    for (const Packet& packet : lane.port->held()) {
      rack_.say(who(), [&] { return "receives " + describe(packet.bytes); });
    }
    core.on_burst(index, {burst.data(), received}, now_ns);
  }
  const auto packets = core.to_send(index, now_ns);
  const size_t sent = lane.port->tx_burst(packets);
  lane.credit->sent(packets.first(sent));
  for (const nic::TxPacket& packet : packets.first(sent)) {
    rack_.say(who(), [&] { return "sends " + describe(packet.header); });
  }
  if (sent > 0) core.sent(index, sent, now_ns);
  return received > 0 || sent > 0;
}

// As the client's I/O thread.
bool Worker::exchange_packets(uint64_t now_ns) {
  bool busy = false;
  bool received = false;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const uint64_t before = lanes_[lane].port->packets_given();
    busy = exchange(lane, now_ns) || busy;
    received = received || lanes_[lane].port->packets_given() != before;
  }
  if (membership_->core()->on_timer(now_ns, received)) busy = true;
  return busy;
}

void Worker::turn() {
  if (membership_ == nullptr || over_) return;
  const uint64_t now_ns = thread_.now_ns();
  membership_->on_time(now_ns);
  uint64_t next_ns = UINT64_MAX;
  bool busy = false;
  if (membership_->phase() == worker::Membership::Phase::kRunning) {
    run_application(now_ns, next_ns, busy);
  }
  auto actions = membership_->take_actions();
  for (worker::Action& action : actions) perform(action);
  end_if_over();
  if (over_ || membership_ == nullptr) return;
  if (busy) next_ns = std::min(next_ns, now_ns + (slow_ ? kSlowTurnNs : kTurnNs));
  next_ns = std::min(next_ns, membership_->next_deadline_ns());
  thread_.wake_at(std::max(next_ns, now_ns + 1));
}

void Worker::run_application(uint64_t now_ns, uint64_t& next_ns, bool& busy) {
  worker::Core& core = *membership_->core();
  if (!std::exchange(is_placed_, true) && has_been_in_) application_->resume(core, now_ns);
  has_been_in_ = true;
  began_ns_ = std::min(began_ns_, rack_.queue.now_ns());
  next_ns = application_->start_due(*membership_, now_ns, rack_.queue.now_ns());
  busy = exchange_packets(now_ns);
  const auto completed = core.take_completed();
  for (const uint32_t tensor : completed) {
    rack_.say(who(), [&] { return "has completed tensor " + std::to_string(tensor); });
    application_->completed(tensor, now_ns);
  }
  if (job_.options.is_relaxed() && !completed.empty()) check_statistics(core);
  if (application_->done()) leave_when_done();
  busy = busy || !completed.empty();
  if (!busy) next_ns = std::min(next_ns, core.next_deadline_ns());
}

// What the product says of its reads is what they were.
void Worker::check_statistics(const worker::Core& core) const {
  const worker::Statistics statistics = core.statistics();
  const auto dropped = application_->operations_dropped();
  require(!dropped || statistics.dropped_rounds == *dropped, [&] {
    return who() + ": of " + std::to_string(*dropped) + " operations some part was dropped, " +
           std::to_string(statistics.dropped_rounds) + " are reported";
  });
  const auto& reads = statistics.staleness.by_staleness;
  for (size_t age = job_.options.sync.staleness + 1; age < reads.size(); ++age) {
    require(reads[age] == 0 || !job_.reads.has_bound(), [&] {
      return who() + ": reports a read that is older than the bound, by " + std::to_string(age);
    });
  }
}

// A rank that leaves takes with it what others may need to recover: careful applications wait for
// each other first.
void Worker::leave_when_done() {
  if (job_.options.barrier_at_end) {
    if (!std::exchange(barrier_asked_, true)) {
      barrier_asked_ns_ = rack_.queue.now_ns();
      job_.at_barrier.insert(rank_);
      membership_->ask_barrier();
    }
    if (membership_->barriers_released() == 0) return;
    require(job_.may_lack_ranks() || job_.at_barrier.size() == job_.options.workers,
            [&] { return job_.name + ": a barrier was released before all had come to it"; });
  }
  job_.is_ending = true;
  // Whoever is looked for while others leave finds nobody to go on with.
  job_.may_fail = job_.may_fail || job_.disturbed;
  membership_->leave();
}

void Worker::end_if_over() {
  using Phase = worker::Membership::Phase;
  const Phase phase = membership_->phase();
  if (over_ || (phase != Phase::kFailed && phase != Phase::kLeft)) return;
  close_lanes();
  if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), host_);
  if (phase == Phase::kFailed) {
    failure_ = membership_->failure();
    rack_.say(who(), [&] { return "fails: " + failure_->message; });
    if (may_try_again()) {
      crash(false);
      rack_.queue.after(kSupervisorNs, [this] { start(); });
      return;
    }
  }
  over_ = job_.is_ending = true;
  over_ns_ = rack_.queue.now_ns();
}

// Whoever runs the workers starts one again that was left behind, or that was not let in while the
// box took its predecessor for alive.
bool Worker::may_try_again() const {
  const bool in_anothers_place = starts_ > 1 && !is_placed_;
  const bool was_left_behind = job_.may_lack_ranks() && failure_->code == ErrorCode::kWorkerLost;
  return (in_anothers_place || was_left_behind) && !job_.is_ending && starts_ < kStartsMax;
}

void Worker::pause(uint64_t length_ns) {
  thread_.pause(length_ns);
  rack_.control.stall(host_, rack_.queue.now_ns() + length_ns);
}

}  // namespace pbox::sim
