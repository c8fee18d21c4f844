// The only file that includes Beast, which is slow to compile.
#include "appliance/admin/server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "appliance/admin/routes.h"

namespace pbox::admin {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr size_t kReadBufferBytes = 2 * limits::kAdminHeaderBytesMax;
constexpr std::chrono::milliseconds kAcceptRetryDelay{100};
constexpr std::chrono::milliseconds kLingerTimeout{1'000};

class Session;

// The state that the connections share with their listener. It outlives both.
struct Shared {
  AdminSource* source;
  std::chrono::milliseconds timeout;
  size_t connections_max;
  std::unordered_set<Session*> sessions;
};

// One connection: reads a request, answers it, and starts again. Its pending operations own it, so
// it is destroyed when the last of them ends. One deadline covers a whole read or a whole write, so
// a client that sends or takes one byte at a time does not extend it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, std::shared_ptr<Shared> shared)
      : stream_(std::move(socket)), buffer_(kReadBufferBytes), shared_(std::move(shared)) {
    shared_->sessions.insert(this);
  }
  ~Session() { shared_->sessions.erase(this); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void read_request();
  void close() {
    closed_ = true;
    stream_.close();
  }

 private:
  void on_header(error_code error);
  void read_body();
  void respond();
  void write_response(AdminResponse answer, bool keep_alive, bool with_body);
  void linger();
  void discard();

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  std::shared_ptr<Shared> shared_;
  bool closed_ = false;
};

void Session::read_request() {
  parser_.emplace();
  parser_->header_limit(limits::kAdminHeaderBytesMax);
  // answer() refuses a body that it does not want, whatever its length. boost::none would not mean
  // "no limit" here: Boost 1.74 takes every length to exceed it.
  parser_->body_limit(std::numeric_limits<uint64_t>::max());
  stream_.expires_after(shared_->timeout);
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](error_code error, size_t) { self->on_header(error); });
}

void Session::on_header(error_code error) {
  if (closed_) return;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    const std::string bound = std::to_string(limits::kAdminHeaderBytesMax);
    write_response(refuse(431, "the header is longer than " + bound + " bytes"), false, true);
  } else if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return;  // the client has disconnected
  } else if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    write_response(refuse(400, "not HTTP: " + error.message()), false, true);
  } else if (!error && parser_->get().method() == http::verb::post) {
    read_body();
  } else if (!error) {
    respond();
  }
}

void Session::read_body() {
  if (parser_->chunked() || parser_->content_length().value_or(0) > limits::kAdminBodyBytesMax) {
    const std::string bound = std::to_string(limits::kAdminBodyBytesMax);
    write_response(refuse(413, "a body must state its length and have at most " + bound + " bytes"),
                   false, true);
    return;
  }
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, size_t) {
                     if (!error && !self->closed_) self->respond();
                   });
}

void Session::respond() {
  const auto& message = parser_->get();
  const auto view = [](beast::string_view text) {
    return std::string_view(text.data(), text.size());
  };
  const AdminRequest request{
      .method = view(message.method_string()),
      .target = view(message.target()),
      .has_body = parser_->chunked() || parser_->content_length().value_or(0) > 0,
      .content_type = view(message[http::field::content_type]),
      .body = message.body()};
  // The connection ends after a body that stays unread: its bytes would be taken for a request.
  const bool is_read = parser_->is_done() || !request.has_body;
  write_response(answer(*shared_->source, request), message.keep_alive() && is_read,
                 message.method() != http::verb::head);
}

void Session::write_response(AdminResponse answer, bool keep_alive, bool with_body) {
  const auto& header = parser_->get();
  response_.emplace(static_cast<http::status>(answer.status),
                    parser_->is_header_done() ? header.version() : 11u);
  response_->set(http::field::server, "pboxd");
  response_->set(http::field::content_type, answer.content_type);
  response_->set(http::field::cache_control, "no-store");
  response_->set("X-Content-Type-Options", "nosniff");
  if (answer.status == 405) response_->set(http::field::allow, "GET, HEAD, POST");
  response_->keep_alive(keep_alive);
  response_->content_length(answer.body.size());
  if (with_body) response_->body() = std::move(answer.body);
  stream_.expires_after(shared_->timeout);
  http::async_write(stream_, *response_,
                    [self = shared_from_this(), keep_alive](error_code error, size_t) {
                      if (error || self->closed_) return;
                      if (keep_alive) {
                        self->read_request();
                      } else {
                        self->linger();
                      }
                    });
}

// Ends the connection without losing the answer. Closing a socket that has unread bytes resets it,
// and the reset may overtake the answer. So this sends the end of the stream and discards what
// still arrives, for at most kLingerTimeout.
void Session::linger() {
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(kLingerTimeout);
  discard();
}

void Session::discard() {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kReadBufferBytes),
                          [self = shared_from_this()](error_code error, size_t) {
                            if (!error && !self->closed_) self->discard();
                          });
}

// Best effort: the socket's send buffer is empty, so the answer fits unless the peer has
// disconnected already.
void refuse_connection(tcp::socket& socket) {
  const AdminResponse answer = refuse(503, "too many connections");
  const std::string text =
      "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: " +
      answer.content_type + "\r\nContent-Length: " + std::to_string(answer.body.size()) +
      "\r\n\r\n" + answer.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  asio::write(socket, asio::buffer(text), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
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

}  // namespace

class AdminServer::Listener : public std::enable_shared_from_this<Listener> {
 public:
  Listener(asio::io_context& io, tcp::acceptor acceptor, std::shared_ptr<Shared> shared)
      : acceptor_(std::move(acceptor)), retry_timer_(io), shared_(std::move(shared)) {}

  uint16_t port() const {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).port();
  }

  void accept() {
    acceptor_.async_accept([self = shared_from_this()](error_code error, tcp::socket socket) {
      self->on_accept(error, std::move(socket));
    });
  }

  void stop() {
    error_code ignored;
    acceptor_.close(ignored);
    retry_timer_.cancel();
    for (Session* session : shared_->sessions) session->close();
  }

 private:
  void on_accept(error_code error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {
      // The process is probably out of file descriptors. An immediate retry would spin the control
      // thread.
      retry_timer_.expires_after(kAcceptRetryDelay);
      retry_timer_.async_wait([self = shared_from_this()](error_code) {
        if (self->acceptor_.is_open()) self->accept();
      });
      return;
    }
    if (shared_->sessions.size() >= shared_->connections_max) {
      refuse_connection(socket);
    } else {
      std::make_shared<Session>(std::move(socket), shared_)->read_request();
    }
    accept();
  }

  tcp::acceptor acceptor_;
  asio::steady_timer retry_timer_;
  std::shared_ptr<Shared> shared_;
};

AdminServer::AdminServer(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {}

AdminServer::~AdminServer() {
  stop();
}

Result<std::unique_ptr<AdminServer>> AdminServer::start(asio::io_context& io,
                                                        const AdminOptions& options,
                                                        AdminSource& source) {
  auto acceptor = open_acceptor(io, options);
  if (!acceptor) return acceptor.error();
  auto shared = std::make_shared<Shared>(
      Shared{&source, std::chrono::milliseconds(options.timeout_ms), options.connections_max, {}});
  auto listener = std::make_shared<Listener>(io, std::move(*acceptor), std::move(shared));
  listener->accept();
  return std::unique_ptr<AdminServer>(new AdminServer(std::move(listener)));
}

uint16_t AdminServer::port() const {
  return listener_->port();
}

void AdminServer::stop() {
  listener_->stop();
}

}  // namespace pbox::admin
