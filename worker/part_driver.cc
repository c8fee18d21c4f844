#include "worker/part_driver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

// Limit for opening a port that has a replacement.
constexpr uint64_t kOpenFirstNs = 10 * kNanosPerSecond;

}  // namespace

void PartDriver::perform_actions() {
  for (;;) {
    auto actions = membership_.take_actions();
    std::move(actions.begin(), actions.end(), std::back_inserter(pending_actions_));
    if (pending_actions_.empty() ||
        (opening_ && pending_actions_.front().kind != Action::Kind::kSend))
      return;
    const Action action = std::move(pending_actions_.front());
    pending_actions_.pop_front();
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

// Switches to the next port. Returns false if there is none.
bool PartDriver::give_up_port(const Error& why) {
  PBOX_CHECK(port_ < ports_.size());
  if (port_ + 1 == ports_.size()) return false;
  proto::PortGivenUp& report = port_reports_.emplace_back();
  report.set_port(ports_[port_]);
  report.set_reason(why.message);
  report.set_next(ports_[++port_]);
  return true;
}

// Only starts to connect: the packets of other parts must not wait for a box that is gone.
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
  PBOX_CHECK(channel_.has_value() && connect_by_ns_ != 0);
  const auto established = channel_->connected();
  if (established && !*established && now_ns < connect_by_ns_) return;
  connect_by_ns_ = 0;
  if (established && *established) {
    membership_.on_connected(channel_->peer(), now_ns);
    return;
  }
  const Error why = established
                        ? Error{ErrorCode::kUnavailable, "the box at " + channel_->box() +
                                                             " does not answer; is the host "
                                                             "up and the port open?"}
                        : established.error();
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

// A job's packets never change their size, so they must fit every port that this worker may switch
// to.
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
  // Ends the opening if the membership wants anything other than to send messages: it has given up
  // on the transport.
  const auto keep_alive = [this]() -> Status {
    pump(monotonic_ns());
    if (is_stopping_()) return Error{ErrorCode::kClosed, "this worker is leaving the job"};
    if (!pending_actions_.empty())
      return Error{ErrorCode::kClosed, "the control connection is closed"};
    return ok_status();
  };
  // The driver owns the session's packet numbers: they go on from port to port.
  std::vector<uint64_t> next_packet_numbers(action.session.pipelines.size(), 1);
  for (;;) {
    const bool is_last = port_ + 1 == ports_.size();
    const uint64_t alone_by_ns = is_last ? UINT64_MAX : monotonic_ns() + kOpenFirstNs;
    opening_ = true;
    Status opened = transport_->open(action.session, {std::min(action.deadline_ns, alone_by_ns),
                                                      keep_alive, next_packet_numbers});
    if (opened) opened = add_all_memory(keep_alive);
    opening_ = false;
    if (opened) break;
    if (!keep_alive() || !give_up_port(opened.error())) return opened.error();
    if (const Status next = open_port(); !next) return next.error();
  }
  PBOX_CHECK(transport_ != nullptr);
  TransportFacts facts;
  facts.rto_floor_ns = transport_->rto_floor_ns();
  must_poll_ = false;
  for (uint32_t lane = 0; lane < action.session.pipelines.size(); ++lane) {
    facts.lanes.push_back({next_packet_numbers[lane], transport_->receivable_bytes(lane)});
    must_poll_ = must_poll_ || transport_->event_fd(lane) < 0;
  }
  return facts;
}

// Memory that a device refuses is copied and counted. That is no reason to stop.
Status PartDriver::add_all_memory(const std::function<Status()>& keep_alive) {
  takes_memory_ = true;
  for (const auto& [memory, bytes] : memory_) {
    static_cast<void>(transport_->add_memory(memory, bytes));
    if (const Status alive = keep_alive(); !alive) return alive;
  }
  return ok_status();
}

Status PartDriver::add_memory(const std::byte* memory, size_t bytes) {
  PBOX_CHECK(!memory_.contains(memory));
  memory_[memory] = bytes;
  return takes_memory_ ? transport_->add_memory(memory, bytes) : ok_status();
}

bool PartDriver::remove_memory(const std::byte* memory, bool force) {
  memory_.erase(memory);
  return !takes_memory_ || transport_->remove_memory(memory, force);
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
    send_transport_requests();
    if (sent_) sent_ = channel_->flush();
    const auto messages = channel_->receive();
    if (messages) {
      for (const auto& message : *messages) {
        if (message.has_queue_pairs() && transport_) transport_->on_answer(message.queue_pairs());
        membership_.on_message(message, now_ns);
      }
    }
    // A FAILURE that has arrived is more precise than the broken connection after it.
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

// The session is resumed over another port, as after a broken connection.
void PartDriver::leave_failed_port(uint64_t now_ns) {
  if (opening_ || !transport_ || membership_.phase() != Membership::Phase::kRunning) return;
  const auto failure = transport_->failure();
  if (failure && give_up_port(*failure)) membership_.on_disconnected(*failure, now_ns);
}

void PartDriver::send_transport_requests() {
  proto::WorkerMessage message;
  if (!transport_ || !sent_) return;
  if (transport_->take_request(*message.mutable_queue_pairs())) sent_ = channel_->send(message);
  while (sent_ && !port_reports_.empty() && membership_.phase() == Membership::Phase::kRunning) {
    *message.mutable_port_given_up() = std::move(port_reports_.front());
    port_reports_.pop_front();
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
  PBOX_DCHECK(exchange != nullptr && transport_ != nullptr);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  bool busy = false;
  bool received_any = false;
  for (uint32_t lane = 0; lane < exchange->pipeline_count(); ++lane) {
    const size_t received = transport_->rx_burst(lane, burst);
    PBOX_DCHECK(received <= burst.size());
    if (received > 0) exchange->on_burst(lane, {burst.data(), received}, now_ns);
    received_any = received_any || received > 0;
    const auto packets = exchange->to_send(lane, now_ns);
    size_t sent = 0;
    if (!packets.empty()) {
      sent = transport_->tx_burst(lane, packets);
      PBOX_DCHECK(sent <= packets.size());
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
    // ppoll ignores entries without a descriptor (-1).
    waits.push_back(
        {transport_->event_fd(lane), static_cast<short>(blocked ? POLLIN | POLLOUT : POLLIN), 0});
  }
}

}  // namespace pbox::worker
