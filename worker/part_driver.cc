#include "worker/part_driver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/clock.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

// For a port that another one would stand in for.
constexpr uint64_t kOpenFirstNs = 10 * kNanosPerSecond;

}  // namespace

void PartDriver::perform_actions() {
  for (;;) {
    auto actions = membership_.take_actions();
    std::move(actions.begin(), actions.end(), std::back_inserter(to_do_));
    if (to_do_.empty() || (opening_ && to_do_.front().kind != Action::Kind::kSend)) return;
    const Action action = std::move(to_do_.front());
    to_do_.pop_front();
    perform(action);
  }
}

void PartDriver::perform(const Action& action) {
  switch (action.kind) {
    case Action::Kind::kConnect: connect(action); return;
    case Action::Kind::kDisconnect:
      channel_.reset();
      connect_by_ns_ = 0;
      return;
    case Action::Kind::kSend:
      if (channel_ && sent_) sent_ = channel_->send(action.message);
      return;
    case Action::Kind::kMeasurePath:
      membership_.on_path_mtu(narrowest_path(action.addresses), monotonic_ns());
      return;
    case Action::Kind::kOpenTransport: {
      const auto facts = open_lanes(action);
      membership_.on_transport_open(facts, monotonic_ns());
      return;
    }
    case Action::Kind::kCloseTransport: close_transport(); return;
  }
}

void PartDriver::close_transport() {
  closed_ = payload_counts();
  transport_.reset();
  takes_memory_ = false;
}

Status PartDriver::open_port() {
  close_transport();
  for (;;) {
    auto transport = open_transport(ports_[port_]);
    if (transport) {
      transport_ = std::move(*transport);
      return ok_status();
    }
    if (!give_up_port(transport.error())) return transport.error();
  }
}

// False if there is no other.
bool PartDriver::give_up_port(const Error& why) {
  if (port_ + 1 == ports_.size()) return false;
  proto::PortGivenUp& told = to_tell_.emplace_back();
  told.set_port(ports_[port_]);
  told.set_reason(why.message);
  told.set_next(ports_[++port_]);
  return true;
}

// Only begins it: what other parts exchange meanwhile must not wait for a box that is gone.
void PartDriver::connect(const Action& action) {
  if (const Status opened = open_port(); !opened) {
    return membership_.on_disconnected(opened.error(), monotonic_ns());
  }
  auto channel = ControlChannel::open(action.box);
  if (!channel) return membership_.on_disconnected(channel.error(), monotonic_ns());
  channel_.emplace(std::move(*channel));
  connect_by_ns_ = action.deadline_ns;
  sent_ = ok_status();
  advance_connection(monotonic_ns());
}

void PartDriver::advance_connection(uint64_t now_ns) {
  const auto stands = channel_->connected();
  if (stands && !*stands && now_ns < connect_by_ns_) return;
  connect_by_ns_ = 0;
  if (stands && *stands) {
    membership_.on_connected(channel_->peer(), now_ns);
    return;
  }
  const Error why = stands ? Error{ErrorCode::kUnavailable, "the box at " + channel_->box() +
                                                                " does not answer; is the host "
                                                                "up and the port open?"}
                           : stands.error();
  channel_.reset();
  membership_.on_disconnected(why, now_ns);
}

Result<uint32_t> PartDriver::narrowest_path(Transport& transport,
                                            const std::vector<nic::Endpoint>& addresses) const {
  uint32_t narrowest = UINT32_MAX;
  for (const nic::Endpoint& address : addresses) {
    const auto mtu = transport.path_mtu(address);
    if (!mtu) return mtu.error();
    narrowest = std::min(narrowest, *mtu);
  }
  return narrowest;
}

// Packets of a job keep their size: they must fit the ports that this worker may come to.
Result<uint32_t> PartDriver::narrowest_path(const std::vector<nic::Endpoint>& addresses) {
  auto narrowest = narrowest_path(*transport_, addresses);
  for (size_t port = port_ + 1; narrowest && port < ports_.size(); ++port) {
    const auto transport = open_transport(ports_[port]);
    if (!transport) continue;
    const auto mtu = narrowest_path(**transport, addresses);
    if (mtu && *mtu < *narrowest) narrowest = *mtu;
  }
  return narrowest;
}

Result<TransportFacts> PartDriver::open_lanes(const Action& action) {
  // Ends the opening when the membership wants anything but messages sent: it has given up on it.
  const auto tend = [this]() -> Status {
    pump(monotonic_ns());
    if (stops_()) return Error{ErrorCode::kClosed, "this worker leaves the job"};
    if (!to_do_.empty()) return Error{ErrorCode::kClosed, "the control connection is gone"};
    return ok_status();
  };
  for (;;) {
    const bool is_last = port_ + 1 == ports_.size();
    const uint64_t alone_by_ns = is_last ? UINT64_MAX : monotonic_ns() + kOpenFirstNs;
    opening_ = true;
    Status opened =
        transport_->open(action.session, {std::min(action.deadline_ns, alone_by_ns), tend});
    if (opened) opened = add_all_memory(tend);
    opening_ = false;
    if (opened) break;
    if (!tend() || !give_up_port(opened.error())) return opened.error();
    if (const Status next = open_port(); !next) return next.error();
  }
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

// What a device refuses is copied, and counted: no reason not to go on.
Status PartDriver::add_all_memory(const std::function<Status()>& tend) {
  takes_memory_ = true;
  for (const auto& [memory, bytes] : memory_) {
    static_cast<void>(transport_->add_memory(memory, bytes));
    if (const Status tended = tend(); !tended) return tended;
  }
  return ok_status();
}

Status PartDriver::add_memory(const std::byte* memory, size_t bytes) {
  memory_[memory] = bytes;
  return takes_memory_ ? transport_->add_memory(memory, bytes) : ok_status();
}

bool PartDriver::remove_memory(const std::byte* memory, bool break_off) {
  memory_.erase(memory);
  return !takes_memory_ || transport_->remove_memory(memory, break_off);
}

PayloadCounts PartDriver::payload_counts() const {
  PayloadCounts counts = closed_;
  if (transport_) counts.add(transport_->payload_counts());
  return counts;
}

void PartDriver::pump(uint64_t now_ns) {
  perform_actions();
  if (channel_ && connect_by_ns_ != 0) {
    advance_connection(now_ns);
  } else if (channel_) {
    speak_for_transport();
    if (sent_) sent_ = channel_->flush();
    const auto messages = channel_->receive();
    if (messages) {
      for (const auto& message : *messages) {
        if (message.has_queue_pairs() && transport_) transport_->on_answer(message.queue_pairs());
        membership_.on_message(message, now_ns);
      }
    }
    // A FAILURE that arrived says more than the broken connection behind it.
    if (!messages) {
      membership_.on_disconnected(messages.error(), now_ns);
    } else if (!sent_) {
      membership_.on_disconnected(sent_.error(), now_ns);
    }
  }
  leave_failed_port(now_ns);
  membership_.on_time(now_ns);
  perform_actions();
}

// The session is taken up again over another port, as after a broken connection.
void PartDriver::leave_failed_port(uint64_t now_ns) {
  if (opening_ || !transport_ || membership_.phase() != Membership::Phase::kRunning) return;
  const auto failure = transport_->failure();
  if (failure && give_up_port(*failure)) membership_.on_disconnected(*failure, now_ns);
}

void PartDriver::speak_for_transport() {
  proto::WorkerMessage message;
  if (!transport_ || !sent_) return;
  if (transport_->take_request(*message.mutable_queue_pairs())) sent_ = channel_->send(message);
  while (sent_ && !to_tell_.empty() && membership_.phase() == Membership::Phase::kRunning) {
    *message.mutable_port_given_up() = std::move(to_tell_.front());
    to_tell_.pop_front();
    sent_ = channel_->send(message);
  }
}

void PartDriver::end_control(std::vector<pollfd>& waits) {
  if (!channel_ || !sent_ || connect_by_ns_ != 0) return;
  sent_ = channel_->flush();
  if (!sent_) return;
  const bool has_more = channel_->wants_write();
  if (!has_more) channel_->end();
  if (!channel_->receive()) return;
  waits.push_back({channel_->fd(), static_cast<short>(has_more ? POLLIN | POLLOUT : POLLIN), 0});
}

bool PartDriver::exchange_packets(uint64_t now_ns) {
  if (membership_.phase() != Membership::Phase::kRunning) return false;
  Exchange* const exchange = membership_.exchange();
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  bool busy = false;
  bool received_any = false;
  for (uint32_t lane = 0; lane < exchange->pipeline_count(); ++lane) {
    const size_t received = transport_->rx_burst(lane, burst);
    if (received > 0) exchange->on_burst(lane, {burst.data(), received}, now_ns);
    received_any = received_any || received > 0;
    const auto packets = exchange->to_send(lane, now_ns);
    size_t sent = 0;
    if (!packets.empty()) {
      sent = transport_->tx_burst(lane, packets);
      exchange->sent(lane, sent);
    }
    busy = busy || received > 0 || sent > 0;
  }
  return exchange->on_timer(now_ns, received_any) || busy;
}

uint64_t PartDriver::next_deadline_ns() const {
  uint64_t deadline_ns = membership_.next_deadline_ns();
  if (connect_by_ns_ != 0) deadline_ns = std::min(deadline_ns, connect_by_ns_);
  if (membership_.phase() == Membership::Phase::kRunning) {
    deadline_ns = std::min(deadline_ns, membership_.exchange()->next_deadline_ns());
  }
  return deadline_ns;
}

void PartDriver::add_control_wait(std::vector<pollfd>& waits) const {
  if (!channel_ || membership_.failure()) return;
  short events = channel_->wants_write() ? POLLIN | POLLOUT : POLLIN;
  if (connect_by_ns_ != 0) events = POLLOUT;
  waits.push_back({channel_->fd(), events, 0});
}

void PartDriver::add_waits(std::vector<pollfd>& waits) const {
  add_control_wait(waits);
  if (membership_.phase() != Membership::Phase::kRunning) return;
  const Exchange& exchange = *membership_.exchange();
  for (uint32_t lane = 0; lane < exchange.pipeline_count(); ++lane) {
    const bool blocked = exchange.has_unsent(lane);
    // ppoll leaves out what has no descriptor (-1).
    waits.push_back(
        {transport_->event_fd(lane), static_cast<short>(blocked ? POLLIN | POLLOUT : POLLIN), 0});
  }
}

}  // namespace pbox::worker
