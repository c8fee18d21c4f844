#include "worker/part_driver.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "worker/transport/transport_library.h"

namespace pbox::worker {
namespace {

// While the thread does not sleep, it looks for packets on every lane at least this often.
constexpr uint64_t kLookIntervalNs = 100'000;

}  // namespace

void PartDriver::perform_actions() {
  for (;;) {
    auto actions = membership_.take_actions();
    std::move(actions.begin(), actions.end(), std::back_inserter(pending_actions_));
    if (pending_actions_.empty()) return;
    const Action::Kind kind = pending_actions_.front().kind;
    if (opener_ && kind != Action::Kind::kSend) {
      opener_->cancel();  // the membership has given up the transport that is being opened
      if (kind != Action::Kind::kDisconnect) return;
    }
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
    case Action::Kind::kOpenTransport: open_lanes(action); return;
    case Action::Kind::kCloseTransport: close_transport(); return;
  }
}

void PartDriver::close_transport() {
  PBOX_CHECK(!opener_);
  closed_ = payload_counts();
  transport_.reset();
  is_open_ = false;
}

Status PartDriver::open_port() {
  close_transport();
  auto transport = choice_.open_next();
  if (!transport) return transport.error();
  transport_ = std::move(*transport);
  return ok_status();
}

// Only starts to connect: the packets of other parts must not wait for a box that is gone, nor for
// a name server.
void PartDriver::connect(const Action& action) {
  channel_.reset();
  if (const Status opened = open_port(); !opened) {
    return membership_.on_disconnected(opened.error(), monotonic_ns());
  }
  target_ = {.box = action.box, .keys = keys_.get(), .name = action.box_name};
  connect_by_ns_ = action.deadline_ns;
  advance_connection(monotonic_ns());
}

// The name is resolved again, because it may have another address now. Meanwhile the known ones are
// tried again.
void PartDriver::fail_connection(const Error& why, uint64_t now_ns) {
  addresses_.refresh(target_.box);
  channel_.reset();
  connect_by_ns_ = 0;
  membership_.on_disconnected(why, now_ns);
}

void PartDriver::advance_connection(uint64_t now_ns) {
  PBOX_CHECK(connect_by_ns_ != 0);
  if (!channel_) {
    const auto found = addresses_.find(target_.box);
    if (!found && now_ns < connect_by_ns_) return;
    if (!found) return fail_connection(unresolved(target_.box), now_ns);
    if (!*found) return fail_connection(found->error(), now_ns);
    auto channel = ControlChannel::open(target_, **found, connect_by_ns_);
    if (!channel) return fail_connection(channel.error(), now_ns);
    channel_.emplace(std::move(*channel));
    sent_ = ok_status();
  }
  const auto established = channel_->connected();
  if (!established) return fail_connection(established.error(), now_ns);
  if (*established) {
    connect_by_ns_ = 0;
    session_keys_.reset();
    if (keys_ != nullptr) session_keys_ = keys_->session_keys(*channel_->tls());
    return membership_.on_connected(channel_->peer(), now_ns, session_keys_.get());
  }
  if (now_ns < connect_by_ns_) return;
  fail_connection({ErrorCode::kUnavailable,
                   "the box at " + channel_->box() +
                       " does not answer; check that the host is up and the port open"},
                  now_ns);
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
  for (size_t port = choice_.current + 1; narrowest && port < choice_.ports.size(); ++port) {
    const auto transport = open_transport(choice_.ports[port]);
    if (!transport) continue;
    const auto mtu = narrowest_path(**transport, addresses);
    if (mtu && *mtu < *narrowest) narrowest = *mtu;
  }
  return narrowest;
}

void PartDriver::open_lanes(const Action& action) {
  PBOX_CHECK(!opener_ && transport_ != nullptr);
  opener_.emplace(LaneOpener::Order{.choice = std::move(choice_),
                                    .transport = std::move(transport_),
                                    .session = action.session,
                                    .deadline_ns = action.deadline_ns,
                                    .memory = memory_,
                                    .heap = heap_});
}

// Sends what the transport asks the box, and takes the transport once it is open.
void PartDriver::advance_opening() {
  PBOX_CHECK(opener_.has_value() && transport_ == nullptr);
  auto outcome = opener_->take();
  while (const auto request = opener_->take_request()) {
    proto::WorkerMessage message;
    *message.mutable_queue_pairs() = *request;
    if (channel_ && sent_) sent_ = channel_->send(message);
  }
  if (outcome) take_opened(std::move(*outcome));
}

void PartDriver::take_opened(LaneOpener::Outcome outcome) {
  const bool is_cancelled = opener_->is_cancelled();
  opener_.reset();
  choice_ = std::move(outcome.choice);
  closed_.add(outcome.closed);
  transport_ = std::move(outcome.transport);
  is_open_ = outcome.facts.ok();
  must_poll_ = false;
  PBOX_CHECK(!is_open_ || transport_ != nullptr);
  if (is_open_) {
    for (const proto::QueuePairs& answer : outcome.answers) transport_->on_answer(answer);
    for (uint32_t lane = 0; lane < outcome.facts->receivable_bytes.size(); ++lane) {
      must_poll_ = must_poll_ || transport_->event_fd(lane) < 0;
    }
  }
  if (!is_cancelled) membership_.on_transport_open(outcome.facts, monotonic_ns());
}

void PartDriver::end_opening() {
  if (opener_) opener_->cancel();
  opener_.reset();
}

std::shared_ptr<MemoryRegistrar> PartDriver::add_memory(const std::byte* memory, size_t bytes) {
  memory_[memory] = bytes;
  if (opener_) opener_->add_memory(memory, bytes);
  return is_open_ ? transport_->memory_registrar() : nullptr;
}

void PartDriver::give_memory(const std::byte* memory,
                             const std::shared_ptr<MemoryRegistrar>& registrar,
                             Result<std::unique_ptr<DeviceMemory>>& registered) {
  PBOX_CHECK(registrar != nullptr);
  const auto known = memory_.find(memory);
  if (!is_open_ || known == memory_.end() || transport_->memory_registrar() != registrar) return;
  if (registered) {
    transport_->add_memory(memory, known->second, std::move(*registered));
  } else {
    transport_->add_memory(memory, known->second, registered.error());
  }
}

bool PartDriver::remove_memory(const std::byte* memory, bool force,
                               std::unique_ptr<DeviceMemory>& released) {
  memory_.erase(memory);
  if (opener_) return opener_->remove_memory(memory);
  return !is_open_ || transport_->remove_memory(memory, force, released);
}

PayloadCounts PartDriver::payload_counts() const {
  PayloadCounts counts = closed_;
  if (transport_) counts.add(transport_->payload_counts());
  return counts;
}

void PartDriver::pump(uint64_t now_ns) {
  if (opener_) advance_opening();
  perform_actions();
  if (connect_by_ns_ != 0) {
    advance_connection(now_ns);
  } else if (channel_) {
    send_transport_requests();
    if (sent_) sent_ = channel_->flush();
    const auto messages = channel_->receive();
    if (messages) {
      for (const auto& message : *messages) {
        if (message.has_queue_pairs()) give_answer(message.queue_pairs());
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
  leave_lost_path(now_ns);
  membership_.on_time(now_ns);
  perform_actions();
}

void PartDriver::give_answer(const proto::QueuePairs& answer) {
  if (opener_) opener_->give_answer(answer);
  if (is_open_) transport_->on_answer(answer);
}

// The session is resumed over another port, like after a broken connection.
void PartDriver::leave_failed_port(uint64_t now_ns) {
  if (membership_.phase() != Membership::Phase::kRunning) return;
  const auto failure = transport_->failure();
  if (failure && choice_.give_up(*failure)) membership_.on_disconnected(*failure, now_ns);
}

// The session is resumed over another path, as soon as there is one.
void PartDriver::leave_lost_path(uint64_t now_ns) {
  if (!may_disconnect_ || membership_.phase() != Membership::Phase::kRunning) return;
  if (const auto failure = transport_->path_failure()) {
    membership_.on_disconnected(*failure, now_ns);
  }
}

// The box cannot see the end of a control connection whose address has gone.
void PartDriver::on_addresses_lost(std::span<const nic::Endpoint> lost, uint64_t now_ns) {
  std::vector<nic::Endpoint> used;
  if (may_disconnect_ && membership_.phase() == Membership::Phase::kRunning) {
    used = transport_->local_endpoints();
  }
  if (can_resume_ && channel_) used.push_back(channel_->local());
  for (const nic::Endpoint& gone : lost) {
    const bool is_used = std::any_of(used.begin(), used.end(), [&](const nic::Endpoint& own) {
      return own.ipv6 == gone.ipv6 && own.address == gone.address && own.scope_id == gone.scope_id;
    });
    if (!is_used) continue;
    return membership_.on_disconnected(
        {ErrorCode::kBoxLost, "this host has lost the address " + nic::address_string(gone) +
                                  ", from which it used the box"},
        now_ns);
  }
}

void PartDriver::send_transport_requests() {
  proto::WorkerMessage message;
  if (!is_open_ || !sent_) return;
  if (transport_->take_request(*message.mutable_queue_pairs())) sent_ = channel_->send(message);
  auto& reports = choice_.reports;
  while (sent_ && !reports.empty() && membership_.phase() == Membership::Phase::kRunning) {
    *message.mutable_port_given_up() = std::move(reports.front());
    reports.pop_front();
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

size_t PartDriver::receive(uint64_t now_ns) {
  received_any_ = false;
  if (membership_.phase() != Membership::Phase::kRunning) return 0;
  Exchange* const exchange = membership_.exchange();
  PBOX_DCHECK(exchange != nullptr && transport_ != nullptr);
  std::array<nic::RxPacket, limits::kBurstPackets> burst;
  const uint32_t lanes = exchange->pipeline_count();
  if (is_quiet_.size() != lanes || now_ns - all_looked_at_ns_ >= kLookIntervalNs) {
    is_quiet_.assign(lanes, 0);
    all_looked_at_ns_ = now_ns;
  }
  size_t all = 0;
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    if (is_quiet_[lane] != 0) continue;
    const size_t received = transport_->rx_burst(lane, burst);
    PBOX_DCHECK(received <= burst.size());
    if (received > 0) exchange->on_burst(lane, {burst.data(), received}, now_ns);
    is_quiet_[lane] = received == 0 && !must_poll_;
    all += received;
  }
  received_any_ = all > 0;
  return all;
}

void PartDriver::add_lanes(size_t part, uint64_t now_ns, SendTurns& turns) const {
  if (membership_.phase() != Membership::Phase::kRunning) return;
  const Exchange& exchange = *membership_.exchange();
  for (uint32_t lane = 0; lane < exchange.pipeline_count(); ++lane) {
    turns.add({part, lane, exchange.next_priority(lane, now_ns)});
  }
}

bool PartDriver::send(uint32_t lane, uint64_t now_ns, std::optional<int32_t>& next) {
  Exchange& exchange = *membership_.exchange();
  const auto packets = exchange.to_send(lane, now_ns);
  next = std::nullopt;
  if (packets.empty()) return false;
  const size_t sent = transport_->tx_burst(lane, packets);
  PBOX_DCHECK(sent <= packets.size());
  exchange.sent(lane, sent);
  if (sent == packets.size()) next = exchange.next_priority(lane, now_ns);
  return sent > 0;
}

bool PartDriver::run_timers(uint64_t now_ns) {
  return membership_.phase() == Membership::Phase::kRunning &&
         membership_.exchange()->on_timer(now_ns, received_any_);
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
  if (opener_) waits.push_back({opener_->fd(), POLLIN, 0});
  if (membership_.failure()) return;
  if (connect_by_ns_ != 0 && !channel_) waits.push_back({addresses_.fd(), POLLIN, 0});
  if (!channel_) return;
  waits.push_back({channel_->fd(), channel_->events(), 0});
}

void PartDriver::add_lane_waits(std::vector<pollfd>& waits) const {
  if (membership_.phase() != Membership::Phase::kRunning) return;
  const Exchange& exchange = *membership_.exchange();
  for (uint32_t lane = 0; lane < exchange.pipeline_count(); ++lane) {
    const bool blocked = exchange.has_unsent(lane);
    // ppoll ignores entries without a descriptor (-1).
    waits.push_back(
        {transport_->event_fd(lane), static_cast<short>(blocked ? POLLIN | POLLOUT : POLLIN), 0});
  }
}

void PartDriver::note_ready(std::span<const pollfd> waits, size_t& first, uint64_t now_ns) {
  if (membership_.phase() != Membership::Phase::kRunning) return;
  const uint32_t lanes = membership_.exchange()->pipeline_count();
  PBOX_DCHECK(first + lanes <= waits.size());
  for (uint32_t lane = 0; lane < lanes; ++lane, ++first) {
    if (lane < is_quiet_.size() && waits[first].revents != 0) is_quiet_[lane] = 0;
  }
  all_looked_at_ns_ = now_ns;
}

}  // namespace pbox::worker
