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

constexpr uint64_t kTurnNs = 2'000;
constexpr uint64_t kSlowTurnNs = 200'000;

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

// The lite runtime of protobuf cannot print messages.
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

Member::Member(Rack& rack, const Place& place)
    : rack_(rack),
      host_(place.host),
      thread_(rack.queue, [this] { turn(); }),
      first_port_(place.first_port),
      path_mtu_(place.path_mtu) {}

void Member::begin(std::unique_ptr<worker::Membership> membership) {
  membership_ = std::move(membership);
  membership_->begin(thread_.now_ns());
  perform();
}

// The process has died. The network ends its connections.
void Member::forget() {
  connection_ = 0;
  close_lanes();
  membership_.reset();
}

void Member::hang_up() {
  if (connection_ != 0) rack_.control.close(std::exchange(connection_, 0), host_);
}

void Member::turn() {
  if (membership_ == nullptr || over_) return;
  const uint64_t now_ns = thread_.now_ns();
  membership_->on_time(now_ns);
  uint64_t next_ns = UINT64_MAX;
  bool busy = false;
  if (membership_->phase() == worker::Membership::Phase::kRunning) {
    next_ns = run(*membership_->exchange(), now_ns, busy);
  }
  perform_actions();
  if (over_ || membership_ == nullptr) return;
  if (busy) next_ns = std::min(next_ns, now_ns + (slow_ ? kSlowTurnNs : kTurnNs));
  next_ns = std::min(next_ns, membership_->next_deadline_ns());
  thread_.wake_at(std::max(next_ns, now_ns + 1));
}

void Member::perform() {
  perform_actions();
  thread_.wake_soon();
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
        membership_->on_path_mtu(path_mtu_, thread_.now_ns());
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
        membership_->on_transport_open(facts, thread_.now_ns());
        perform();
      });
      return;
    case Kind::kCloseTransport: close_lanes(); return;
  }
}

void Member::connect(const worker::Action& action) {
  box_ = box_at(action.box);
  connection_ = rack_.control.connect(host_, box_);
  is_connected_ = false;
  const uint64_t now_ns = thread_.now_ns();
  rack_.queue.after(
      action.deadline_ns - std::min(action.deadline_ns, now_ns), [this, id = connection_] {
        if (id != connection_ || is_connected_) return;
        hang_up();
        membership_->on_disconnected({ErrorCode::kUnavailable, "no answer"}, thread_.now_ns());
        perform();
      });
}

void Member::send(const proto::WorkerMessage& message) {
  rack_.say(who(), [&] { return "says " + describe(message); });
  const auto framed = wire::frame(message);
  require(framed.ok(), "a control message is too long for its frame");
  rack_.control.send(connection_, host_, framed->substr(wire::kControlLengthBytes));
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
  membership_->on_connected(endpoint_of(box_, limits::kControlPort), thread_.now_ns(), keys_.get());
  perform();
}

void Member::on_control_message(ConnectionId id, const std::string& body) {
  if (id != connection_) return;
  proto::BoxMessage message;
  require(message.ParseFromString(body), "a box sent an invalid control message");
  rack_.say(who(), [&] { return "hears " + describe(message); });
  membership_->on_message(message, thread_.now_ns());
  perform();
}

void Member::on_closed(ConnectionId id, const std::string& reason) {
  if (id != connection_) return;
  connection_ = 0;
  rack_.say(who(), [&] { return "is disconnected: " + reason; });
  membership_->on_disconnected({ErrorCode::kBoxLost, reason}, thread_.now_ns());
  perform();
}

// The first port does not work, which its probes have shown. The session goes on by the next one.
void Member::fall_back(const worker::SessionSpec& session) {
  constexpr uint16_t kFirstPorts = 0x2000;
  rack_.counts.add(Fault::kPortFallback);
  const std::vector<std::byte> payload(wire::kPathProbeBytesMin);
  std::vector<std::byte> room(limits::kFragmentBytesMax);
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    if (!worker::first_chunk_of(session, index)) continue;
    const nic::Endpoint from =
        endpoint_of(host_, static_cast<uint16_t>((first_port_ + index) ^ kFirstPorts));
    rack_.network.send(from,
                       worker::make_probe(session, index, thread_.now_ns(), payload, room.data()));
  }
}

void Member::open_lanes(const worker::SessionSpec& session) {
  ++transport_;
  if (rack_.options.ports_fall_back) fall_back(session);
  for (uint32_t index = 0; index < session.pipelines.size(); ++index) {
    Lane& lane = lanes_.emplace_back();
    open_port(lane, static_cast<uint16_t>(first_port_ + index));
    if (rack_.checks) lane.credit = watch(session, index);
    const auto mirror = mirrors_.find(session.pipelines[index].spi);
    if (lane.credit && mirror != mirrors_.end()) {
      lane.credit->set_mirror(std::move(mirror->second));
      mirrors_.erase(mirror);
    }
  }
}

void Member::open_port(Lane& lane, uint16_t port) {
  lane.local = endpoint_of(host_, port);
  ReceiveRing& ring =
      rack_.network.open(lane.local, {.on_arrival = [this] { thread_.wake_soon(); }});
  lane.port = std::make_unique<SimPort>(rack_.network, lane.local, ring, rack_.options);
}

void Member::rebind() {
  constexpr uint16_t kOtherPorts = 0x4000;
  for (Lane& lane : lanes_) {
    rack_.network.close(lane.local);
    open_port(lane, lane.local.port ^ kOtherPorts);
  }
}

void Member::close_lanes() {
  for (const Lane& lane : lanes_) rack_.network.close(lane.local);
  lanes_.clear();
}

bool Member::exchange(uint32_t index, uint64_t now_ns) {
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  Lane& lane = lanes_[index];
  worker::Exchange& exchange = *membership_->exchange();
  if (lane.credit) lane.credit->set_generation(membership_->session().generation());
  lane.port->set_burst_packets(slow_ ? 1 : rack_.options.burst_packets);
  const size_t received = lane.port->rx_burst(burst);
  if (received > 0) {
    if (lane.credit) lane.credit->received(lane.port->held());
    for (const Packet& packet : lane.port->held()) {
      rack_.say(who(), [&] { return "receives " + describe(packet.bytes); });
    }
    exchange.on_burst(index, {burst.data(), received}, now_ns);
  }
  const auto packets = exchange.to_send(index, now_ns);
  const size_t sent = lane.port->tx_burst(packets);
  if (lane.credit) lane.credit->sent(packets.first(sent), rack_.options.faults_end_ns == 0);
  for (const nic::TxPacket& packet : packets.first(sent)) {
    rack_.say(who(), [&] { return "sends " + describe(packet.header); });
  }
  if (sent > 0) exchange.sent(index, sent);
  return received > 0 || sent > 0;
}

// Does one round of the client's I/O thread.
bool Member::exchange_packets(uint64_t now_ns) {
  bool busy = false;
  bool received = false;
  for (uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    const uint64_t before = lanes_[lane].port->packets_given();
    busy = exchange(lane, now_ns) || busy;
    received = received || lanes_[lane].port->packets_given() != before;
  }
  if (membership_->exchange()->on_timer(now_ns, received)) busy = true;
  return busy;
}

}  // namespace pbox::sim
