#include "appliance/admin/server.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "appliance/admin/local_socket.h"
#include "appliance/admin/routes.h"
#include "appliance/admin/session.h"
#include "appliance/control/handshakes.h"
#include "appliance/control/listen.h"
#include "base/check.h"

namespace pbox::admin {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using local = asio::local::stream_protocol;
using GenericSocket = asio::generic::stream_protocol::socket;

constexpr std::chrono::milliseconds kAcceptRetryDelay{100};

// Best effort: the socket's send buffer is empty, so the answer fits unless the peer has
// disconnected already.
void refuse_connection(GenericSocket& socket) {
  const std::string text = answer_text(refuse(503, "too many connections"), {});
  error_code ignored;
  socket.non_blocking(true, ignored);
  asio::write(socket, asio::buffer(text), ignored);
  socket.shutdown(asio::socket_base::shutdown_send, ignored);
}

Result<tcp::acceptor> open_acceptor(asio::io_context& io, const AdminOptions& options) {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(options.listen, error);
  if (error) {
    return Error{ErrorCode::kInvalidArgument,
                 "admin.listen = '" + options.listen +
                     "' is not an IP address; use 127.0.0.1, ::1, 0.0.0.0 or ::"};
  }
  tcp::acceptor acceptor(io);
  const tcp::endpoint endpoint(address, options.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error && address.is_v6()) acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(static_cast<int>(options.connections_max), error);
  if (error) {
    return Error{ErrorCode::kSystem, "admin: cannot listen on " + options.listen + " port " +
                                         std::to_string(options.port) + ": " + error.message() +
                                         "; change admin.listen or admin.port (0: any free port)"};
  }
  return acceptor;
}

// Bounds on the handshakes under way: as many as there may be connections, and a quarter of them
// from one address.
constexpr control::HandshakeLimits kHandshakeLimits = {
    .most = limits::kAdminConnectionsMax, .most_per_address = limits::kAdminConnectionsMax / 4};

control::HandshakeOptions handshake_options() {
  const std::string remedy =
      "use https:// and a certificate of the box's cluster (`pboxctl keys operator`, or viewer for "
      "metrics; pboxctl takes its folder as --keys)";
  return {
      .limits = kHandshakeLimits,
      .plain_text_answer = answer_text(
          {400, "text/plain; charset=utf-8",
           "this port speaks HTTP with TLS, and the client speaks it without; " + remedy + "\n"},
          {}),
      .plain_text_remedy = remedy};
}

}  // namespace

// Accepts connections, at most connections_max at a time.
class AdminServer::Listener {
 public:
  Listener(asio::io_context& io, std::shared_ptr<const Shared> shared, size_t connections_max)
      : shared_(std::move(shared)), connections_max_(connections_max), retry_timer_(io) {}

 protected:
  ~Listener() = default;

  // Accepts for as long as the acceptor is open. `self` owns the acceptor and has
  // on_accepted(socket).
  template <typename Self, typename Acceptor>
  static void accept(std::shared_ptr<Self> self, Acceptor& acceptor) {
    acceptor.async_accept([self, &acceptor](error_code error, auto socket) {
      if (!acceptor.is_open()) return;
      if (!error) {
        self->on_accepted(std::move(socket));
        return accept(self, acceptor);
      }
      // The process is probably out of file descriptors. An immediate attempt would spin the
      // control thread.
      self->retry_timer_.expires_after(kAcceptRetryDelay);
      self->retry_timer_.async_wait([self, &acceptor](error_code) {
        if (acceptor.is_open()) accept(self, acceptor);
      });
    });
  }

  void open(Peer peer) {
    if (sessions_->size() >= connections_max_) {
      if (peer.tls == nullptr) refuse_connection(peer.socket);
      return;
    }
    Session::open(std::move(peer), shared_, sessions_);
  }

  void close_all() {
    retry_timer_.cancel();
    for (Session* session : *sessions_) session->close();
  }

 private:
  std::shared_ptr<const Shared> shared_;
  std::shared_ptr<Sessions> sessions_ = std::make_shared<Sessions>();
  size_t connections_max_;
  asio::steady_timer retry_timer_;
};

class AdminServer::TcpListener : public Listener, public std::enable_shared_from_this<TcpListener> {
 public:
  TcpListener(asio::io_context& io, tcp::acceptor acceptor, std::shared_ptr<const Shared> shared,
              size_t connections_max)
      : Listener(io, std::move(shared), connections_max), acceptor_(std::move(acceptor)) {}

  uint16_t port() const {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).port();
  }
  void begin() { accept(shared_from_this(), acceptor_); }
  // Makes all later connections use TLS.
  void use_tls(asio::io_context& io, std::shared_ptr<const tls::Credentials> credentials,
               const std::function<void(const std::string&, const std::string&)>& on_refused) {
    credentials_ = credentials;
    handshakes_.emplace(
        io, std::move(credentials), handshake_options(),
        [weak = weak_from_this()](control::AcceptedPeer peer) {
          const auto self = weak.lock();
          if (self && self->acceptor_.is_open()) self->on_established(std::move(peer));
        },
        [on_refused](const nic::Endpoint& peer, const std::string& why) {
          on_refused(nic::to_string(peer), why);
        });
  }
  // Has no effect without TLS. Closes all connections, because the rights of a client are those of
  // its certificate at the handshake.
  void set_credentials(std::shared_ptr<const tls::Credentials> credentials) {
    if (!handshakes_) return;
    credentials_ = credentials;
    handshakes_->set_credentials(std::move(credentials));
    close_all();
  }
  void on_accepted(tcp::socket socket) {
    error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // the client has already disconnected
    if (handshakes_) return handshakes_->begin(socket, control::to_endpoint(peer));
    const std::string address = nic::to_string(control::to_endpoint(peer));
    open({.socket = std::move(socket),
          .client = {.name = address, .address = address, .role = tls::Role::kOperator}});
  }
  void stop() {
    error_code ignored;
    acceptor_.close(ignored);
    handshakes_.reset();
    close_all();
  }

 private:
  void on_established(control::AcceptedPeer peer) {
    if (peer.credentials != credentials_) return;  // its handshake began with the former keys
    const tls::Identity identity = peer.tls->peer();
    open({.socket = std::move(peer.socket),
          .client = {.name = tls::to_uri(identity),
                     .address = nic::to_string(peer.endpoint),
                     .role = identity.role},
          .tls = std::move(peer.tls),
          .plain = std::move(peer.plain)});
  }

  tcp::acceptor acceptor_;
  std::shared_ptr<const tls::Credentials> credentials_;  // null without TLS
  std::optional<control::Handshakes> handshakes_;
};

class AdminServer::LocalListener : public Listener,
                                   public std::enable_shared_from_this<LocalListener> {
 public:
  LocalListener(asio::io_context& io, std::unique_ptr<LocalSocket> file,
                std::shared_ptr<const Shared> shared, size_t connections_max)
      : Listener(io, std::move(shared), connections_max), file_(std::move(file)), acceptor_(io) {}

  Status begin() {
    error_code error;
    const int fd = file_->duplicate();
    if (fd < 0) return system_error("admin.socket", errno);
    acceptor_.assign(local(), fd, error);
    if (error) {
      close(fd);
      return Error{ErrorCode::kSystem, "admin.socket: " + error.message()};
    }
    accept(shared_from_this(), acceptor_);
    return ok_status();
  }
  void on_accepted(local::socket socket) {
    const auto credentials = peer_credentials(socket.native_handle());
    if (!credentials) return;  // the client has already disconnected
    open({.socket = std::move(socket),
          .client = local_principal(*credentials, geteuid(), file_->group()),
          .is_local = true});
  }
  void stop() {
    error_code ignored;
    acceptor_.close(ignored);
    file_.reset();
    close_all();
  }

 private:
  std::unique_ptr<LocalSocket> file_;
  local::acceptor acceptor_;
};

AdminServer::AdminServer() = default;

AdminServer::~AdminServer() {
  stop();
}

Result<std::unique_ptr<AdminServer>> AdminServer::start(asio::io_context& io,
                                                        const AdminOptions& options,
                                                        AdminSource& source) {
  auto acceptor = open_acceptor(io, options);
  if (!acceptor) return acceptor.error();
  std::unique_ptr<AdminServer> server(new AdminServer());
  const auto on_refused = [count = server->refused_, tell = options.on_refused](
                              const std::string& client, const std::string& why) {
    ++*count;
    if (tell) tell(client, why);
  };
  const auto shared = std::make_shared<const Shared>(
      Shared{.source = &source,
             .names = OwnNames(options.names),
             .timeout = std::chrono::milliseconds(options.timeout_ms),
             .on_refused = on_refused,
             .audit = options.audit});
  server->tcp_ =
      std::make_shared<TcpListener>(io, std::move(*acceptor), shared, options.connections_max);
  if (options.credentials) server->tcp_->use_tls(io, options.credentials, on_refused);
  server->tcp_->begin();
  if (options.socket.empty()) return server;
  auto file = LocalSocket::listen(options.socket, static_cast<int>(options.connections_max));
  if (!file) return file.error();
  server->local_ =
      std::make_shared<LocalListener>(io, std::move(*file), shared, options.connections_max);
  if (const Status begun = server->local_->begin(); !begun) return begun.error();
  return server;
}

uint16_t AdminServer::port() const {
  return tcp_->port();
}

uint64_t AdminServer::refused() const {
  return *refused_;
}

void AdminServer::set_credentials(std::shared_ptr<const tls::Credentials> credentials) {
  tcp_->set_credentials(std::move(credentials));
}

void AdminServer::stop() {
  if (tcp_) tcp_->stop();
  if (local_) local_->stop();
}

}  // namespace pbox::admin
