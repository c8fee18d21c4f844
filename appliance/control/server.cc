#include "appliance/control/server.h"

#include <google/protobuf/stubs/logging.h>

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <map>

#include "base/check.h"
#include "base/clock.h"
#include "nic/wire/control_frame.h"

namespace pbox::control {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kTickInterval = std::chrono::milliseconds(50);
constexpr size_t kOutgoingMax = 1024;

std::string describe(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return (endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" +
         std::to_string(endpoint.port());
}

}  // namespace

class ControlServer::Implementation : public std::enable_shared_from_this<Implementation> {
 public:
  Implementation(asio::io_context& context, const ControlOptions& options, JobRegistry& registry)
      : options_(options), registry_(registry), acceptor_(context), timer_(context) {}

  Status listen();
  void accept();
  void tick();
  void flush();
  void stop();
  void stop_accepting();
  bool drained() const;
  void set_connections_max(uint32_t connections_max) { options_.connections_max = connections_max; }
  uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  struct Connection {
    explicit Connection(tcp::socket opened) : socket(std::move(opened)) {}
    tcp::socket socket;
    wire::FrameReader reader;
    std::array<char, 16 * 1024> buffer;
    std::deque<std::string> outgoing;
    bool closing = false;  // close once `outgoing` is empty
  };
  using Pointer = std::shared_ptr<Connection>;

  void add(tcp::socket socket);
  void read(ConnectionId id, const Pointer& connection);
  void received(ConnectionId id, const Pointer& connection, size_t bytes);
  void send(ConnectionId id, const Pointer& connection, const proto::BoxMessage& message);
  void write(ConnectionId id, const Pointer& connection);
  void remove(ConnectionId id, const std::string& reason);

  ControlOptions options_;
  JobRegistry& registry_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;
  std::map<ConnectionId, Pointer> connections_;
  ConnectionId next_id_ = 1;
};

Status ControlServer::Implementation::listen() {
  PBOX_CHECK(!acceptor_.is_open());
  error_code error;
  const auto address = asio::ip::make_address(options_.listen, error);
  const std::string where = "cannot listen on TCP " + options_.listen + " port " +
                            std::to_string(options_.port) + " ([control] port): ";
  if (error) return Error{ErrorCode::kInvalidArgument, where + error.message()};
  const tcp::endpoint endpoint(address, options_.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error{ErrorCode::kSystem, where + error.message() + "; is another pboxd running?"};
  }
  return ok_status();
}

void ControlServer::Implementation::accept() {
  acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !self->acceptor_.is_open()) return;
    if (!error && self->connections_.size() < self->options_.connections_max) {
      self->add(std::move(socket));
    }
    self->accept();
  });
}

void ControlServer::Implementation::add(tcp::socket socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // the peer has already disconnected
  socket.set_option(tcp::no_delay(true), error);
  const ConnectionId id = next_id_++;
  auto connection = std::make_shared<Connection>(std::move(socket));
  PBOX_CHECK(!connections_.contains(id));
  connections_[id] = connection;
  registry_.on_open(id, describe(peer), peer.address().is_v6(), monotonic_ns());
  read(id, connection);
}

void ControlServer::Implementation::read(ConnectionId id, const Pointer& connection) {
  connection->socket.async_read_some(
      asio::buffer(connection->buffer),
      [self = shared_from_this(), id, connection](error_code error, size_t bytes) {
        if (!self->connections_.contains(id)) return;
        if (error) {
          self->remove(id, error == asio::error::eof ? "connection closed" : error.message());
          self->flush();
          return;
        }
        self->received(id, connection, bytes);
      });
}

void ControlServer::Implementation::received(ConnectionId id, const Pointer& connection,
                                             size_t bytes) {
  PBOX_DCHECK(bytes <= connection->buffer.size());
  connection->reader.append(connection->buffer.data(), bytes);
  while (!connection->closing) {
    auto body = connection->reader.next();
    if (!body) {
      proto::BoxMessage message;
      message.mutable_failure()->set_code(static_cast<uint32_t>(body.error().code));
      message.mutable_failure()->set_message(body.error().message);
      send(id, connection, message);
      connection->closing = true;
      break;
    }
    if (!body->has_value()) break;
    registry_.on_message(id, **body, monotonic_ns());
    flush();
    if (!connections_.contains(id)) return;
  }
  if (connection->closing && connection->outgoing.empty()) {
    remove(id, "closed by the box");
    flush();
    return;
  }
  read(id, connection);
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
    connection->closing = true;
    if (connection->outgoing.empty()) remove(action.connection, "closed by the box");
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
    connection->closing = true;
  }
  // The peer does not read. The message being written stays in the queue.
  if (connection->outgoing.size() >= kOutgoingMax) {
    connection->outgoing.resize(1);
    connection->closing = true;
    return;
  }
  connection->outgoing.push_back(std::move(*framed));
  if (connection->outgoing.size() == 1) write(id, connection);
}

void ControlServer::Implementation::write(ConnectionId id, const Pointer& connection) {
  PBOX_CHECK(!connection->outgoing.empty());
  asio::async_write(connection->socket, asio::buffer(connection->outgoing.front()),
                    [self = shared_from_this(), id, connection](error_code error, size_t) {
                      if (!self->connections_.contains(id)) return;
                      connection->outgoing.pop_front();
                      if (error || (connection->outgoing.empty() && connection->closing)) {
                        self->remove(id, error ? error.message() : "closed by the box");
                        self->flush();
                      } else if (!connection->outgoing.empty()) {
                        self->write(id, connection);
                      }
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
  connections_.erase(found);
  registry_.on_closed(id, reason, monotonic_ns());
}

void ControlServer::Implementation::tick() {
  timer_.expires_after(kTickInterval);
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    self->registry_.on_tick(monotonic_ns());
    self->flush();
    self->tick();
  });
}

bool ControlServer::Implementation::drained() const {
  for (const auto& [id, connection] : connections_) {
    if (!connection->outgoing.empty() || connection->closing) return false;
  }
  return true;
}

void ControlServer::Implementation::stop_accepting() {
  error_code ignored;
  acceptor_.close(ignored);
}

void ControlServer::Implementation::stop() {
  stop_accepting();
  timer_.cancel();
  error_code ignored;
  for (auto& [id, connection] : connections_) connection->socket.close(ignored);
  connections_.clear();
}

Result<std::unique_ptr<ControlServer>> ControlServer::start(asio::io_context& context,
                                                            const ControlOptions& options,
                                                            JobRegistry& registry) {
  // Errors in a peer's messages are answered, not printed; otherwise any peer could fill the
  // journal.
  google::protobuf::SetLogHandler(nullptr);
  auto implementation = std::make_shared<Implementation>(context, options, registry);
  if (const Status status = implementation->listen(); !status) return status.error();
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
bool ControlServer::drained() const {
  return implementation_->drained();
}
void ControlServer::flush() {
  implementation_->flush();
}

}  // namespace pbox::control
