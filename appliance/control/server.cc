#include "appliance/control/server.h"

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "appliance/control/listen.h"
#include "appliance/control/message_stream.h"
#include "appliance/control/work_budget.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/standstill.h"

namespace pbox::control {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(50);
// The box reads nothing from a peer that has this many bytes of answers to read, so that the
// answers to its questions cannot pile up.
constexpr size_t kUnreadBytesMax = 256 * 1024;
// The most bytes that may wait for one peer. A rank of the largest job that resumes gets a SESSION
// and the rounds of all its chunks at once.
constexpr size_t kOutgoingBytesMax = 16u << 20;
static_assert(kOutgoingBytesMax >= limits::kControlMessageBytesMax + 8 * limits::kChunksPerJobMax);
// Time for a peer to read its last messages before its connection is closed.
constexpr uint64_t kClosingMaxNs = 5 * kNanosPerSecond;
// Interval between attempts while accepting fails, for example for lack of a file descriptor.
constexpr auto kAcceptRetry = std::chrono::milliseconds(100);

}  // namespace

class ControlServer::Implementation : public std::enable_shared_from_this<Implementation> {
 public:
  Implementation(asio::io_context& context, const ControlOptions& options, JobRegistry& registry)
      : options_(options),
        registry_(registry),
        acceptor_(context),
        timer_(context),
        accept_timer_(context),
        context_(context) {}

  Status listen() { return control::listen(acceptor_, options_.listen, options_.port); }
  void begin_handshakes();
  void accept();
  void tick();
  void flush();
  void stop();
  void stop_accepting();
  bool drained() const;
  void set_connections_max(uint32_t connections_max) { options_.connections_max = connections_max; }
  void set_credentials(std::shared_ptr<const tls::Credentials> credentials);
  uint16_t port() const { return acceptor_.local_endpoint().port(); }
  size_t queued_bytes() const;
  uint64_t handshakes_refused() const { return handshakes_refused_; }
  bool export_secret(ConnectionId id, std::span<const std::byte> context,
                     std::span<std::byte, tls::kExportedSecretBytes> to) const;

 private:
  struct Connection {
    Connection(tcp::socket opened, std::unique_ptr<tls::Connection> tls, ConnectionBudget share)
        : socket(std::move(opened)),
          stream(std::move(tls)),
          budget(std::move(share)),
          pause(socket.get_executor()) {}
    tcp::socket socket;
    std::array<char, 16 * 1024> buffer;
    MessageStream stream;
    bool closing = false;  // close once everything is written
    uint64_t closing_since_ns = 0;
    bool waits_for_peer = false;  // read again once the peer has read most of what it was sent
    ConnectionBudget budget;
    asio::steady_timer pause;
  };
  using Pointer = std::shared_ptr<Connection>;

  void on_accepted(tcp::socket socket);
  void on_handshake_refused(const nic::Endpoint& peer, const std::string& why);
  void add(AcceptedPeer peer);
  bool check_peer(ConnectionId id);
  void check_next();
  void accept_later(const error_code& error);
  void read(ConnectionId id, const Pointer& connection);
  void handle(ConnectionId id, const Pointer& connection);
  bool handle_next(ConnectionId id, const Pointer& connection);
  void pause(ConnectionId id, const Pointer& connection, uint64_t now_ns);
  static void begin_closing(const Pointer& connection);
  void close_slow_readers();
  void send(ConnectionId id, const Pointer& connection, const proto::BoxMessage& message);
  void write(ConnectionId id, const Pointer& connection);
  void remove(ConnectionId id, const std::string& reason);

  ControlOptions options_;
  JobRegistry& registry_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  asio::steady_timer accept_timer_;
  bool is_accept_failing_ = false;
  TurnClock ticks_;
  SourceDebts debts_;
  std::map<ConnectionId, Pointer> connections_;
  ConnectionId next_id_ = 1;
  asio::io_context& context_;
  std::optional<Handshakes> handshakes_;  // with credentials
  uint64_t handshakes_refused_ = 0;
  std::deque<ConnectionId> unchecked_;  // opened with earlier credentials than the present ones
};

void ControlServer::Implementation::accept() {
  acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !self->acceptor_.is_open()) return;
    if (error) return self->accept_later(error);
    self->is_accept_failing_ = false;
    self->on_accepted(std::move(socket));
    self->accept();
  });
}

// The peer stays in the kernel's queue, so another attempt at once would fail again.
void ControlServer::Implementation::accept_later(const error_code& error) {
  if (!is_accept_failing_) {
    options_.on_event({RegistryEvent::Severity::kWarning, "accept_failed",
                       "cannot accept a control connection: " + error.message() +
                           "; raise LimitNOFILE of the service, or lower [control] "
                           "connections_max (" +
                           std::to_string(options_.connections_max) + ")"});
  }
  is_accept_failing_ = true;
  accept_timer_.expires_after(kAcceptRetry);
  accept_timer_.async_wait([self = shared_from_this()](error_code aborted) {
    if (!aborted && self->acceptor_.is_open()) self->accept();
  });
}

void ControlServer::Implementation::on_accepted(tcp::socket socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // the peer has already disconnected
  socket.set_option(tcp::no_delay(true), error);
  if (handshakes_) return handshakes_->begin(socket, to_endpoint(peer));
  add({.socket = std::move(socket), .endpoint = to_endpoint(peer)});
}

void ControlServer::Implementation::begin_handshakes() {
  if (options_.credentials == nullptr) return;
  const std::weak_ptr<Implementation> weak = shared_from_this();
  handshakes_.emplace(
      context_, options_.credentials, handshake_options(options_.handshakes),
      [weak](AcceptedPeer peer) {
        const auto self = weak.lock();
        if (!self || !self->acceptor_.is_open()) return;
        self->add(std::move(peer));
      },
      [weak](const nic::Endpoint& peer, const std::string& why) {
        if (const auto self = weak.lock()) self->on_handshake_refused(peer, why);
      });
}

void ControlServer::Implementation::on_handshake_refused(const nic::Endpoint& peer,
                                                         const std::string& why) {
  ++handshakes_refused_;
  const std::string address = to_string(peer);
  options_.on_event({RegistryEvent::Severity::kWarning, "handshake_refused", address + ": " + why});
  if (options_.audit) {
    options_.audit({.kind = audit::Kind::kHandshakeRefused, .address = address, .reason = why});
  }
}

void ControlServer::Implementation::add(AcceptedPeer peer) {
  if (connections_.size() >= options_.connections_max) return;
  const ConnectionId id = next_id_++;
  std::optional<tls::Identity> identity;
  if (peer.tls != nullptr) identity = peer.tls->peer();
  ConnectionBudget budget(debts_, nic::source_of(peer.endpoint), monotonic_ns());
  auto connection =
      std::make_shared<Connection>(std::move(peer.socket), std::move(peer.tls), std::move(budget));
  PBOX_CHECK(!connections_.contains(id));
  connections_[id] = connection;
  registry_.on_open(id, peer.endpoint, monotonic_ns(), std::move(identity));
  connection->stream.take_plain(peer.plain);
  if (peer.credentials != options_.credentials && !check_peer(id)) return;
  handle(id, connection);
}

void ControlServer::Implementation::set_credentials(
    std::shared_ptr<const tls::Credentials> credentials) {
  PBOX_CHECK(handshakes_ && credentials != nullptr);
  options_.credentials = credentials;
  handshakes_->set_credentials(std::move(credentials));
  for (const auto& [id, connection] : connections_) unchecked_.push_back(id);
  check_next();
}

// Checks one connection at a time, so that messages are handled in between.
void ControlServer::Implementation::check_next() {
  if (unchecked_.empty()) return;
  check_peer(unchecked_.front());
  unchecked_.pop_front();
  asio::post(context_, [self = shared_from_this()] { self->check_next(); });
}

// Closes the connection if the present credentials do not accept its peer. Returns false if the
// connection is closed.
bool ControlServer::Implementation::check_peer(ConnectionId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return false;
  const tls::Connection& tls = *found->second->stream.tls();
  const Status accepted = options_.credentials->check_peer(tls.peer_certificates());
  if (accepted) return true;
  options_.on_event({RegistryEvent::Severity::kWarning, "peer_withdrawn",
                     tls::to_uri(tls.peer()) + ": " + accepted.error().message});
  remove(id, "its certificate is not accepted any more");
  flush();
  return false;
}

void ControlServer::Implementation::read(ConnectionId id, const Pointer& connection) {
  connection->socket.async_read_some(
      asio::buffer(connection->buffer),
      [self = shared_from_this(), id, connection](error_code error, size_t bytes) {
        if (!self->connections_.contains(id)) return;
        std::string reason = error == asio::error::eof ? "connection closed" : error.message();
        if (!error) {
          PBOX_DCHECK(bytes <= connection->buffer.size());
          const Status taken = connection->stream.take({connection->buffer.data(), bytes});
          if (taken) return self->handle(id, connection);
          reason = taken.error().message;
          if (connection->stream.tls() == nullptr) {
            const tcp::endpoint peer = connection->socket.remote_endpoint(error);
            self->on_handshake_refused(to_endpoint(peer), reason);
          }
        }
        self->remove(id, reason);
        self->flush();
      });
}

// Handles the messages that have arrived, as many as the peer's budget allows, and then reads on.
void ControlServer::Implementation::handle(ConnectionId id, const Pointer& connection) {
  const uint64_t begun_ns = monotonic_ns();
  if (connection->budget.heard_at_ns(begun_ns) > begun_ns) return pause(id, connection, begun_ns);
  while (!connection->closing && connection->stream.queued_bytes() <= kUnreadBytesMax &&
         monotonic_ns() - begun_ns < WorkBudget::kBurstNs && handle_next(id, connection)) {
  }
  const uint64_t now_ns = monotonic_ns();
  connection->budget.charge(now_ns, now_ns - begun_ns);
  if (!connections_.contains(id)) return;
  if (connection->closing && connection->stream.is_empty()) {
    remove(id, "closed by the box");
    flush();
    return;
  }
  if (!connection->closing && connection->stream.queued_bytes() > kUnreadBytesMax) {
    connection->waits_for_peer = true;
  } else if (now_ns - begun_ns >= WorkBudget::kBurstNs ||
             connection->budget.heard_at_ns(now_ns) > now_ns) {
    pause(id, connection, now_ns);
  } else {
    read(id, connection);
  }
}

// Returns false if there is no message to handle next.
bool ControlServer::Implementation::handle_next(ConnectionId id, const Pointer& connection) {
  auto body = connection->stream.next();
  if (!body) {
    proto::BoxMessage message;
    message.mutable_failure()->set_code(static_cast<uint32_t>(body.error().code));
    message.mutable_failure()->set_message(body.error().message);
    send(id, connection, message);
    begin_closing(connection);
    return false;
  }
  if (!body->has_value()) return false;
  registry_.on_message(id, **body, monotonic_ns());
  flush();
  return connections_.contains(id);
}

// Reads nothing from the connection for a while, so that other connections have their turn.
void ControlServer::Implementation::pause(ConnectionId id, const Pointer& connection,
                                          uint64_t now_ns) {
  const uint64_t heard_at_ns = std::max(connection->budget.heard_at_ns(now_ns), now_ns);
  connection->pause.expires_after(std::chrono::nanoseconds(heard_at_ns - now_ns));
  connection->pause.async_wait([self = shared_from_this(), id, connection](error_code error) {
    if (!error && self->connections_.contains(id)) self->handle(id, connection);
  });
}

void ControlServer::Implementation::begin_closing(const Pointer& connection) {
  if (connection->closing) return;
  connection->closing = true;
  connection->stream.stop_reading();
  connection->closing_since_ns = monotonic_ns();
}

void ControlServer::Implementation::flush() {
  for (const RegistryEvent& event : registry_.take_events()) options_.on_event(event);
  for (const Action& action : registry_.take_actions()) {
    const auto found = connections_.find(action.connection);
    if (found == connections_.end()) continue;
    const Pointer connection = found->second;
    if (action.kind == Action::Kind::kSend) {
      send(action.connection, connection, action.message);
      continue;
    }
    begin_closing(connection);
    if (connection->stream.is_empty()) remove(action.connection, "closed by the box");
  }
}

void ControlServer::Implementation::send(ConnectionId id, const Pointer& connection,
                                         const proto::BoxMessage& message) {
  auto framed = wire::frame(message);
  if (!framed) {
    proto::BoxMessage failure;
    failure.mutable_failure()->set_code(static_cast<uint32_t>(framed.error().code));
    failure.mutable_failure()->set_message(framed.error().message);
    framed = wire::frame(failure);
    begin_closing(connection);
  }
  // The peer does not read, so its messages are dropped, except the one that is being written.
  if (connection->stream.queued_bytes() + framed->size() > kOutgoingBytesMax) {
    connection->stream.drop_waiting();
    begin_closing(connection);
    return;
  }
  connection->stream.push(std::move(*framed));
  if (connection->stream.messages() == 1) write(id, connection);
}

void ControlServer::Implementation::write(ConnectionId id, const Pointer& connection) {
  asio::async_write(connection->socket, asio::buffer(connection->stream.begin_write()),
                    [self = shared_from_this(), id, connection](error_code error, size_t) {
                      if (!self->connections_.contains(id)) return;
                      connection->stream.end_write();
                      if (error || (connection->stream.is_empty() && connection->closing)) {
                        self->remove(id, error ? error.message() : "closed by the box");
                        self->flush();
                        return;
                      }
                      if (!connection->stream.is_empty()) self->write(id, connection);
                      if (!connection->waits_for_peer ||
                          connection->stream.queued_bytes() > kUnreadBytesMax / 2) {
                        return;
                      }
                      connection->waits_for_peer = false;
                      self->handle(id, connection);
                    });
}

void ControlServer::Implementation::remove(ConnectionId id, const std::string& reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  error_code ignored;
  // Shut down before closing. Closing a socket with unread bytes sends a reset, which may destroy
  // the last message on its way.
  found->second->socket.shutdown(tcp::socket::shutdown_both, ignored);
  found->second->socket.close(ignored);
  found->second->pause.cancel();
  found->second->budget.end(monotonic_ns());
  connections_.erase(found);
  registry_.on_closed(id, reason, monotonic_ns());
}

void ControlServer::Implementation::tick() {
  timer_.expires_after(kTickInterval);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    const uint64_t now_ns = monotonic_ns();
    const TurnClock::Turn turn = self->ticks_.next(now_ns);
    if (turn.gap_ns > kStandstillNs) {
      self->registry_.on_standstill(turn, now_ns);
    } else {
      self->registry_.on_tick(now_ns);
    }
    self->flush();
    self->close_slow_readers();
    self->tick();
  });
}

void ControlServer::Implementation::close_slow_readers() {
  const uint64_t now_ns = monotonic_ns();
  std::vector<ConnectionId> slow;
  for (const auto& [id, connection] : connections_) {
    const uint64_t since_ns = connection->closing_since_ns;
    if (connection->closing && now_ns - std::min(now_ns, since_ns) > kClosingMaxNs) {
      slow.push_back(id);
    }
  }
  for (const ConnectionId id : slow) remove(id, "closed by the box, before it had read everything");
  flush();
}

size_t ControlServer::Implementation::queued_bytes() const {
  size_t bytes = 0;
  for (const auto& [id, connection] : connections_) bytes += connection->stream.queued_bytes();
  return bytes;
}

bool ControlServer::Implementation::drained() const {
  for (const auto& [id, connection] : connections_) {
    if (!connection->stream.is_empty() || connection->closing) return false;
  }
  return true;
}

bool ControlServer::Implementation::export_secret(
    ConnectionId id, std::span<const std::byte> context,
    std::span<std::byte, tls::kExportedSecretBytes> to) const {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second->stream.tls() == nullptr) return false;
  found->second->stream.tls()->export_secret(context, to);
  return true;
}

void ControlServer::Implementation::stop_accepting() {
  error_code ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
}

void ControlServer::Implementation::stop() {
  stop_accepting();
  handshakes_.reset();
  timer_.cancel();
  error_code ignored;
  for (auto& [id, connection] : connections_) {
    connection->socket.close(ignored);
    connection->pause.cancel();
  }
  connections_.clear();
}

Result<std::unique_ptr<ControlServer>> ControlServer::start(asio::io_context& context,
                                                            const ControlOptions& options,
                                                            JobRegistry& registry) {
  // Errors in a peer's messages are answered, not printed, or any peer could fill the journal.
  google::protobuf::SetLogHandler(nullptr);
  auto implementation = std::make_shared<Implementation>(context, options, registry);
  if (const Status status = implementation->listen(); !status) return status.error();
  implementation->begin_handshakes();
  implementation->accept();
  implementation->tick();
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(implementation)));
}

ControlServer::ControlServer(std::shared_ptr<Implementation> implementation)
    : implementation_(std::move(implementation)) {}
ControlServer::~ControlServer() {
  implementation_->stop();
}
uint16_t ControlServer::port() const {
  return implementation_->port();
}
void ControlServer::stop_accepting() {
  implementation_->stop_accepting();
}
void ControlServer::set_connections_max(uint32_t connections_max) {
  implementation_->set_connections_max(connections_max);
}
void ControlServer::set_credentials(std::shared_ptr<const tls::Credentials> credentials) {
  implementation_->set_credentials(std::move(credentials));
}
bool ControlServer::drained() const {
  return implementation_->drained();
}
size_t ControlServer::queued_bytes() const {
  return implementation_->queued_bytes();
}
uint64_t ControlServer::handshakes_refused() const {
  return implementation_->handshakes_refused();
}
bool ControlServer::export_secret(ConnectionId connection, std::span<const std::byte> context,
                                  std::span<std::byte, tls::kExportedSecretBytes> to) const {
  return implementation_->export_secret(connection, context, to);
}
void ControlServer::flush() {
  implementation_->flush();
}

}  // namespace pbox::control
