#include "tools/pboxctl/http_connection.h"

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "nic/tls/credentials.h"

namespace pboxctl {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::generic::stream_protocol;
using boost::system::error_code;
using pbox::Error;
using pbox::ErrorCode;
using pbox::Status;

constexpr std::chrono::seconds kTimeout{5};
constexpr char kUnixPrefix[] = "unix:";
constexpr size_t kReadBytes = 64 * 1024;
constexpr char kPlainRemedy[] =
    "; if the HTTP server of the box has no TLS ([admin] tls), give no keys";

Error unreachable(const std::string& what) {
  return {ErrorCode::kUnavailable,
          what +
              "; give the HOST:PORT that pboxd prints as admin= when it is ready, or unix:PATH "
              "with the path that it prints as socket="};
}

class Connection {
 public:
  Status open(const HttpServer& server);
  Status send(const std::string& text);
  // Appends the bytes that arrive next. Returns false if the server has closed the connection.
  pbox::Result<bool> receive(std::string& text);

 private:
  Status connect(const std::vector<stream_protocol::endpoint>& endpoints);
  Status connect_local(const std::string& path);
  Status connect_tcp(const std::string& where);
  Status begin_tls(const std::string& keys);
  Status write(const std::string& bytes);
  pbox::Result<bool> read(std::string& bytes);
  // Runs the operation that has begun, and returns its error.
  error_code run();

  asio::io_context context_;
  boost::beast::basic_stream<stream_protocol> stream_{context_};
  error_code result_;
  std::array<char, kReadBytes> buffer_;
  std::unique_ptr<pbox::tls::Connection> tls_;
  std::string plain_;  // decrypted bytes that have come with the handshake
};

error_code Connection::run() {
  context_.restart();
  context_.run();
  return result_;
}

Status Connection::open(const HttpServer& server) {
  stream_.expires_after(kTimeout);  // one deadline for the whole exchange
  if (server.where.starts_with(kUnixPrefix)) {
    return connect_local(server.where.substr(sizeof(kUnixPrefix) - 1));
  }
  if (const Status connected = connect_tcp(server.where); !connected) return connected.error();
  return server.keys.empty() ? pbox::ok_status() : begin_tls(server.keys);
}

Status Connection::connect(const std::vector<stream_protocol::endpoint>& endpoints) {
  // Only the asynchronous calls have a time limit.
  stream_.async_connect(endpoints, [this](error_code error, const auto&) { result_ = error; });
  const error_code error = run();
  if (!error) return pbox::ok_status();
  return unreachable(error.message());
}

Status Connection::connect_local(const std::string& path) {
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path)) {
    return unreachable("'" + path + "' is not a valid path of a UNIX socket");
  }
  const Status connected = connect({asio::local::stream_protocol::endpoint(path)});
  if (!connected && result_ == asio::error::access_denied) {
    return Error{ErrorCode::kUnavailable,
                 "this user may not use the socket; run pboxctl as root, or as a member of the "
                 "socket's group (`ls "
                 "-l " +
                     path + "`)"};
  }
  return connected;
}

Status Connection::connect_tcp(const std::string& where) {
  const size_t colon = where.rfind(':');
  if (colon == std::string::npos) return unreachable("the address has no port");
  std::string host = where.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  asio::ip::tcp::resolver resolver(context_);
  error_code error;
  const auto found = resolver.resolve(host, where.substr(colon + 1), error);
  if (error) return unreachable(error.message());
  std::vector<stream_protocol::endpoint> endpoints;
  for (const auto& entry : found) endpoints.emplace_back(entry.endpoint());
  return connect(endpoints);
}

Status Connection::begin_tls(const std::string& keys) {
  const auto credentials = pbox::tls::Credentials::load(keys);
  if (!credentials) return credentials.error();
  tls_ = (*credentials)->connect("");
  std::string arrived;
  for (;;) {
    std::string to_box;
    const Status taken = tls_->receive(arrived, plain_, to_box);
    const Status written = write(to_box);
    if (!taken) {
      return Error{ErrorCode::kUnavailable, "TLS: " + taken.error().message + kPlainRemedy};
    }
    if (!written) return written.error();
    if (tls_->is_established()) return pbox::ok_status();
    arrived.clear();
    const auto more = read(arrived);
    if (!more) return more.error();
    if (!*more) {
      return Error{ErrorCode::kUnavailable,
                   std::string("the server has closed the connection during the TLS handshake") +
                       kPlainRemedy};
    }
  }
}

Status Connection::write(const std::string& bytes) {
  if (bytes.empty()) return pbox::ok_status();
  asio::async_write(stream_, asio::buffer(bytes),
                    [this](error_code error, size_t) { result_ = error; });
  if (const error_code error = run()) return unreachable(error.message());
  return pbox::ok_status();
}

pbox::Result<bool> Connection::read(std::string& bytes) {
  size_t count = 0;
  stream_.async_read_some(asio::buffer(buffer_), [this, &count](error_code error, size_t read) {
    result_ = error;
    count = read;
  });
  const error_code error = run();
  if (error == asio::error::eof) return false;
  if (error) return unreachable(error.message());
  bytes.append(buffer_.data(), count);
  return true;
}

Status Connection::send(const std::string& text) {
  if (tls_ == nullptr) return write(text);
  std::string sealed;
  const Status done = tls_->send(text, sealed);
  if (!done) return Error{ErrorCode::kUnavailable, "TLS: " + done.error().message};
  return write(sealed);
}

pbox::Result<bool> Connection::receive(std::string& text) {
  if (tls_ == nullptr) return read(text);
  text += std::exchange(plain_, {});
  std::string bytes, to_box;
  const auto arrived = read(bytes);
  if (!arrived || !*arrived) return arrived;
  const Status taken = tls_->receive(bytes, text, to_box);
  if (!taken) return Error{ErrorCode::kUnavailable, "TLS: " + taken.error().message};
  if (const Status written = write(to_box); !written) return written.error();
  return true;
}

}  // namespace

pbox::Result<HttpAnswer> send_request(const HttpServer& server, const std::string& request) {
  const auto connection = std::make_unique<Connection>();
  if (const Status opened = connection->open(server); !opened) return opened.error();
  if (const Status sent = connection->send(request); !sent) return sent.error();
  http::response_parser<http::string_body> parser;
  // 256 ranks of 64 jobs exceed Beast's default of 1 MiB. With boost::none every body would.
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  parser.eager(true);
  std::string input;
  while (!parser.is_done()) {
    const auto arrived = connection->receive(input);
    if (!arrived) return arrived.error();
    if (!*arrived) return unreachable("the server has closed the connection without an answer");
    error_code error;
    while (!input.empty() && !parser.is_done() && !error) {
      input.erase(0, parser.put(asio::buffer(input), error));
    }
    if (error && error != http::error::need_more) {
      return unreachable("the answer is not HTTP: " + error.message());
    }
  }
  return HttpAnswer{parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace pboxctl
