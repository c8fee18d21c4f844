#include "tests/sim/member.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "nic/wire/path_probe.h"
#include "tests/sim/violation.h"
#include "worker/transport/source_trial.h"

namespace pbox::sim {
namespace {

std::string describe(const wire::Header& header) {
  char text[96];
  std::snprintf(text, sizeof(text), "type %u epoch %u generation %u chunk %u round %u fragment %u",
                header.type_value(), header.epoch, header.generation, header.chunk, header.round,
                header.fragment);
  return text;
}

std::string describe(const std::vector<std::byte>& bytes) {
  wire::Header header;
  if (bytes.size() < sizeof(header)) return "too short";
  std::memcpy(&header, bytes.data(), sizeof(header));
  return describe(header);
}

// Describes a message briefly, because the lite runtime of protobuf cannot print messages.
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

Member::Member(Rack& rack, Place place)
    : rack_(rack),
      process_(std::move(place.process)),
      first_port_(place.first_port),
      path_mtu_(place.path_mtu) {
  process_->add(*this);
}

void Member::begin(std::unique_ptr<worker::Membership> membership) {
  membership_ = std::move(membership);
  membership_->begin(thread().now_ns());
  perform();
}

// Called when the process has died. The network ends its connections.
void Member::forget() {
  connection_ = 0;
  close_lanes();
  membership_.reset();
}

void Member::hang_up() {
  if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), host());
}

std::span<const LaneTurn> Member::begin_turn(size_t part, uint64_t now_ns) {
  exchanges_ = has_received_ = is_busy_ = false;
  operations_due_ns_ = UINT64_MAX;
  to_send_.clear();
  if (membership_ == nullptr || over_) return {};
  membership_->on_time(now_ns);
  exchanges_ = membership_->phase() == worker::Membership::Phase::kRunning;
  if (!exchanges_) return {};
  operations_due_ns_ = start_operations(now_ns);
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    has_received_ = receive(lanes_[lane], lane, now_ns) || has_received_;
  }
  is_busy_ = has_received_;
  const worker::Exchange& exchange = *membership_->exchange();
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    to_send_.push_back({part, lane, exchange.next_priority(lane, now_ns)});
  }
  return to_send_;
}

uint64_t Member::end_turn(uint64_t now_ns, bool& is_busy) {
  if (membership_ == nullptr || over_) return UINT64_MAX;
  uint64_t next_ns = UINT64_MAX;
  if (exchanges_) {
    worker::Exchange& exchange = *membership_->exchange();
    is_busy_ = exchange.on_timer(now_ns, has_received_) || is_busy_;
    is_busy_ = complete_operations(exchange, now_ns) || is_busy_;
    is_busy = is_busy_;
    next_ns = std::min(operations_due_ns_, is_busy_ ? UINT64_MAX : exchange.next_deadline_ns());
  }
  perform_actions();
  if (over_ || membership_ == nullptr) return UINT64_MAX;
  return std::min(next_ns, membership_->next_deadline_ns());
}

void Member::perform() {
  perform_actions();
  thread().wake_soon();
}

void Member::perform_actions() {
  auto actions = membership_->take_actions();
  for (worker::Action& action : actions) perform(action);
  end_if_over();
}

void Member::perform(worker::Action& action) {
  using Kind = worker::Action::Kind;
  switch (action.kind) {
    case Kind::kConnect: connect(action); return;
    case Kind::kDisconnect: hang_up(); return;
    case Kind::kSend: send(action.message); return;
    case Kind::kMeasurePath:
      rack_.queue.after(rack_.options.latency_ns, [this, membership = membership_.get()] {
        if (membership != membership_.get()) return;
        membership_->on_path_mtu(path_mtu_, thread().now_ns());
        perform();
      });
      return;
    case Kind::kOpenTransport:
      on_session(action.session);
      open_lanes(action.session);
      rack_.queue.after(rack_.options.latency_ns, [this, transport = transport_] {
        if (transport != transport_ || lanes_.empty()) return;
        worker::TransportFacts facts;
        facts.rto_floor_ns = rack_.options.rto_floor_ns;
        facts.receivable_bytes.resize(lanes_.size(), UINT32_MAX);
        membership_->on_transport_open(facts, thread().now_ns());
        perform();
      });
      return;
    case Kind::kCloseTransport: close_lanes(); return;
  }
}

void Member::connect(const worker::Action& action) {
  box_ = box_at(action.box);
  connection_ = rack_.control.connect(host(), box_);
  is_connected_ = false;
  const uint64_t now_ns = thread().now_ns();
  rack_.queue.after(
      action.deadline_ns - std::min(action.deadline_ns, now_ns), [this, id = connection_] {
        if (id != connection_ || is_connected_) return;
        hang_up();
        membership_->on_disconnected({ErrorCode::kUnavailable, "no answer"}, thread().now_ns());
        perform();
      });
}

void Member::send(const proto::WorkerMessage& message) {
  rack_.say(who(), [&] { return "says " + describe(message); });
  const auto framed = wire::frame(message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(connection_, host(), framed->substr(wire::kControlLengthBytes));
}

void Member::on_connected(ConnectionId id) {
  if (id != connection_) return;
  is_connected_ = true;
  keys_.reset();
  if (rack_.options.suite != seal::Suite::kNone) {
    keys_ = rack_.keys.of(id, crypto::End::kWorker, [this, id](const auto& name, const auto& spec) {
      if (!rack_.checks) return;
      mirrors_[spec.spi] = rack_.keys.mirror(id, crypto::End::kWorker, name, spec);
    });
  }
  membership_->on_connected(endpoint_of(box_, limits::kControlPort), thread().now_ns(),
                            keys_.get());
  perform();
}

void Member::on_control_message(ConnectionId id, const std::string& body) {
  if (id != connection_) return;
  proto::BoxMessage message;
  require(message.ParseFromString(body), "a box sent an invalid control message");
  rack_.say(who(), [&] { return "hears " + describe(message); });
  membership_->on_message(message, thread().now_ns());
  perform();
}

void Member::on_closed(ConnectionId id, const std::string& reason) {
  if (id != connection_) return;
  connection_ = 0;
  rack_.say(who(), [&] { return "is disconnected: " + reason; });
  const ErrorCode code = is_connected_ ? ErrorCode::kBoxLost : ErrorCode::kUnavailable;
  membership_->on_disconnected({code, reason}, thread().now_ns());
  perform();
}

// Sends probes from a first set of ports, as if these turned out not to work. The session then uses
// the next ports.
void Member::fall_back(const worker::SessionSpec& session) {
  constexpr uint16_t kFirstPorts = 0x2000;
  rack_.counts.add(Fault::kPortFallback);
  const std::vector<std::byte> payload(wire::kPathProbeBytesMin);
  std::vector<std::byte> room(limits::kFragmentBytesMax);
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    if (!worker::first_chunk_of(session, index)) continue;
    const nic::Endpoint from =
        endpoint_of(host(), static_cast<uint16_t>((first_port_ + index) ^ kFirstPorts));
    rack_.network.send(from,
                       worker::make_probe(session, index, thread().now_ns(), payload, room.data()));
  }
}

void Member::open_lanes(const worker::SessionSpec& session) {
  ++transport_;
  if (rack_.options.ports_fall_back) fall_back(session);
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    Lane& lane = lanes_.emplace_back();
    open_port(lane, static_cast<uint16_t>(first_port_ + index));
    lane.pipeline = session.pipelines[index];
    if (rack_.checks) lane.credit = watch(session, index);
    const auto mirror = mirrors_.find(session.pipelines[index].spi);
    if (lane.credit && mirror != mirrors_.end()) {
      lane.credit->set_mirror(std::move(mirror->second));
      mirrors_.erase(mirror);
    }
  }
}

void Member::open_port(Lane& lane, uint16_t port) {
  lane.local = endpoint_of(host(), port);
  ReceiveRing& ring =
      rack_.network.open(lane.local, {.on_arrival = [this] { thread().wake_soon(); }});
  lane.port = std::make_unique<SimPort>(rack_.network, lane.local, ring, rack_.options);
  if (rack_.options.send_ahead_ns == UINT64_MAX) return;
  lane.port->bound_sending(rack_.options.send_ahead_ns,
                           [&thread = thread()] { thread.wake_soon(); });
}

void Member::rebind() {
  constexpr uint16_t kOtherPorts = 0x4000;
  for (Lane& lane : lanes_) {
    rack_.network.close(lane.local);
    open_port(lane, lane.local.port ^ kOtherPorts);
  }
}

std::optional<Error> Member::end_with_membership() {
  using Phase = worker::Membership::Phase;
  const Phase phase = membership_->phase();
  if (over_ || (phase != Phase::kFailed && phase != Phase::kLeft)) return std::nullopt;
  over_ = true;
  close_lanes();
  hang_up();
  if (phase != Phase::kFailed) return std::nullopt;
  const Error why = *membership_->failure();
  rack_.say(who(), [&] { return "fails: " + why.message; });
  return why;
}

void Member::close_lanes() {
  for (const Lane& lane : lanes_) rack_.network.close(lane.local);
  lanes_.clear();
}

bool Member::receive(Lane& lane, uint32_t index, uint64_t now_ns) {
  if (lane.port->is_empty()) return false;
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  if (lane.credit) lane.credit->set_generation(membership_->session().generation());
  lane.port->set_burst_packets(process_->is_slow() ? 1 : rack_.options.burst_packets);
  const size_t received = lane.port->rx_burst(burst);
  if (received == 0) return false;
  if (lane.credit) lane.credit->received(lane.port->held());
  for (const Packet& packet : lane.port->held()) {
    rack_.say(who(), [&] { return "receives " + describe(packet.bytes); });
  }
  membership_->exchange()->on_burst(index, {burst.data(), received}, now_ns);
  return true;
}

std::span<const nic::TxPacket> Member::next_burst(uint32_t index, uint64_t now_ns) {
  Lane& lane = lanes_[index];
  worker::Exchange& exchange = *membership_->exchange();
  if (!rack_.checks) return exchange.to_send(index, now_ns);
  const auto path = process_->paths()->find(lane.pipeline, rack_.options.rto_floor_ns);
  const bool is_built = exchange.has_unsent(index);
  lane.burst.before(exchange, index, *path, now_ns);
  const auto packets = exchange.to_send(index, now_ns);
  if (!is_built) {
    lane.burst.after(packets, *path, now_ns, [this](uint32_t id) { return chunk(id); });
  }
  return packets;
}

std::optional<int32_t> Member::send(uint32_t index, uint64_t now_ns) {
  const auto packets = next_burst(index, now_ns);
  if (packets.empty()) return std::nullopt;
  Lane& lane = lanes_[index];
  const size_t sent = lane.port->tx_burst(packets);
  if (lane.credit) lane.credit->sent(packets.first(sent), rack_.options.faults_end_ns == 0);
  for (const nic::TxPacket& packet : packets.first(sent)) {
    rack_.say(who(), [&] { return "sends " + describe(packet.header); });
  }
  worker::Exchange& exchange = *membership_->exchange();
  exchange.sent(index, sent);
  is_busy_ = is_busy_ || sent > 0;
  return sent == packets.size() ? exchange.next_priority(index, now_ns) : std::nullopt;
}

}  // namespace pbox::sim
