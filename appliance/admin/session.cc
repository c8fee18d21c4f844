// The only file that includes Beast, which is slow to compile.
#include "appliance/admin/session.h"

#include <algorithm>
#include <array>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <limits>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "nic/tls/credentials.h"

namespace pbox::admin {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = limits::kAdminHeaderBytesMax;
constexpr size_t kInputBytesMax = 2 * limits::kAdminHeaderBytesMax;  // not parsed yet
constexpr size_t kHelloBytes = 3;                                    // may_be_tls() needs no more
// Most bytes of TLS's own, such as those that confirm new keys, that wait for the next answer.
constexpr size_t kSealedBytesMax = 16 * 1024;
constexpr std::chrono::milliseconds kLingerTimeout{1'000};

// Returns why a request is refused, without the list of pages that follows.
std::string reason_of(const AdminResponse& answer) {
  return answer.body.substr(0, std::min(answer.body.find(kPagesFollow), answer.body.find('\n')));
}

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

class HttpSession : public Session, public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(Peer peer, std::shared_ptr<const Shared> shared, std::shared_ptr<Sessions> sessions)
      : stream_(std::move(peer.socket)),
        client_(std::move(peer.client)),
        is_local_(peer.is_local),
        tls_(std::move(peer.tls)),
        input_(std::move(peer.plain)),
        shared_(std::move(shared)),
        sessions_(std::move(sessions)) {
    sessions_->insert(this);
  }
  ~HttpSession() override { sessions_->erase(this); }
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void read_request();
  void close() override {
    closed_ = true;
    stream_.close();
  }

 private:
  void read();
  void take(std::string_view bytes);
  void parse();
  void on_parsed();
  void on_bad_request(error_code error);
  bool has_header() const { return parser_->is_header_done(); }
  void respond();
  AdminResponse answer_of(const http::request<http::string_body>& message, bool has_body);
  void refuse_and_end(unsigned status, const std::string& what);
  void audit(const AdminResponse& answer) const;
  void write_response(const AdminResponse& answer, bool keeps_alive);
  void linger();
  void discard();

  beast::basic_stream<asio::generic::stream_protocol> stream_;
  Principal client_;
  bool is_local_;
  std::unique_ptr<tls::Connection> tls_;
  std::array<char, kReadBytes> buffer_;
  std::string input_;  // bytes of requests that are not parsed yet
  std::optional<http::request_parser<http::string_body>> parser_;
  bool wants_body_ = false;
  bool has_spoken_ = false;  // the first bytes have been looked at
  std::string sealed_;       // TLS's own bytes, which wait for the next answer
  std::string output_;       // bytes that are being written
  std::shared_ptr<const Shared> shared_;
  std::shared_ptr<Sessions> sessions_;
  bool closed_ = false;
};

void HttpSession::read_request() {
  parser_.emplace();
  parser_->header_limit(limits::kAdminHeaderBytesMax);
  // on_parsed() refuses a body that it does not want, whatever its length. boost::none would not
  // mean "no limit" here: Boost 1.74 takes every length to exceed it.
  parser_->body_limit(std::numeric_limits<uint64_t>::max());
  wants_body_ = false;
  stream_.expires_after(shared_->timeout);
  parse();
}

void HttpSession::read() {
  stream_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](error_code error, size_t bytes) {
                            if (error || self->closed_) return;  // the client has disconnected
                            self->take({self->buffer_.data(), bytes});
                          });
}

void HttpSession::take(std::string_view bytes) {
  if (tls_ == nullptr) {
    input_ += bytes;
  } else if (!tls_->receive(bytes, input_, sealed_) || sealed_.size() > kSealedBytesMax) {
    return;
  }
  parse();
}

// Parses as much as is needed next, a header or a whole request, and reads if it is not there yet.
void HttpSession::parse() {
  if (!has_spoken_ && tls_ == nullptr && tls::may_be_tls(input_)) {
    if (input_.size() < kHelloBytes) return read();
    const std::string remedy =
        "this port speaks plain HTTP, and the client speaks TLS; use http:// and no keys, or set "
        "admin.tls = on";
    shared_->on_refused(client_.address, remedy);
    return refuse_and_end(400, remedy);
  }
  has_spoken_ = true;
  while (wants_body_ ? !parser_->is_done() : !has_header()) {
    if (input_.empty()) return read();
    error_code error;
    const size_t used = parser_->put(asio::buffer(input_), error);
    input_.erase(0, used);
    if (error == http::error::need_more && input_.size() <= kInputBytesMax) return read();
    if (error) return on_bad_request(error);
  }
  if (wants_body_) return respond();
  on_parsed();
}

void HttpSession::on_bad_request(error_code error) {
  if (error == http::error::header_limit || error == http::error::need_more) {
    const std::string bound = std::to_string(limits::kAdminHeaderBytesMax);
    return refuse_and_end(431, "the header is longer than " + bound + " bytes");
  }
  refuse_and_end(400, "the request is not valid HTTP: " + error.message());
}

void HttpSession::on_parsed() {
  if (parser_->get().method() != http::verb::post) return respond();
  if (parser_->chunked() || parser_->content_length().value_or(0) > limits::kAdminBodyBytesMax) {
    const std::string bound = std::to_string(limits::kAdminBodyBytesMax);
    return refuse_and_end(413, "a body must state its length and have at most " + bound + " bytes");
  }
  parser_->eager(true);
  wants_body_ = true;
  parse();
}

AdminResponse HttpSession::answer_of(const http::request<http::string_body>& message,
                                     bool has_body) {
  if (!is_local_) {
    OriginHeaders headers{.is_http_1_0 = message.version() < 11,
                          .host_count = message.count(http::field::host),
                          .host = view(message[http::field::host]),
                          .origin = std::nullopt};
    if (message.count(http::field::origin) > 0) headers.origin = view(message[http::field::origin]);
    if (const auto refusal = check_origin(shared_->names, headers)) {
      return refuse(refusal->status, refusal->why);
    }
  }
  return answer(*shared_->source, client_,
                {.method = view(message.method_string()),
                 .target = view(message.target()),
                 .has_body = has_body,
                 .content_type = view(message[http::field::content_type]),
                 .body = message.body()});
}

void HttpSession::respond() {
  const auto& message = parser_->get();
  const bool has_body = parser_->chunked() || parser_->content_length().value_or(0) > 0;
  // The connection ends after a body that stays unread: its bytes would be taken for a request.
  const bool is_read = parser_->is_done() || !has_body;
  write_response(answer_of(message, has_body), message.keep_alive() && is_read);
}

void HttpSession::refuse_and_end(unsigned status, const std::string& what) {
  write_response(refuse(status, what), false);
}

// Records every POST, and every other request that the client or its page may not make.
void HttpSession::audit(const AdminResponse& answer) const {
  if (!has_header() || !shared_->audit) return;
  constexpr unsigned kForbidden = 403, kMisdirected = 421, kFirstRefusal = 400;
  const auto& message = parser_->get();
  const bool is_post = message.method() == http::verb::post;
  const bool is_denied = answer.status == kForbidden || answer.status == kMisdirected;
  if (!is_post && !is_denied) return;
  const bool is_refused = answer.status >= kFirstRefusal;
  shared_->audit({.kind = is_refused ? audit::Kind::kAdminRefused : audit::Kind::kAdmin,
                  .who = client_.name == client_.address ? "" : client_.name,
                  .address = client_.address,
                  .status = answer.status,
                  .request = std::string(view(message.method_string())) + " " +
                             std::string(view(message.target())),
                  .body = message.body(),
                  .reason = is_refused ? reason_of(answer) : ""});
}

void HttpSession::write_response(const AdminResponse& answer, bool keeps_alive) {
  audit(answer);
  const auto& message = parser_->get();
  const std::string text =
      answer_text(answer, {.is_http_1_0 = has_header() && message.version() < 11,
                           .keeps_alive = keeps_alive,
                           .has_body = !has_header() || message.method() != http::verb::head});
  if (tls_ == nullptr) {
    output_ = text;
  } else {
    output_ = std::exchange(sealed_, {});
    if (!tls_->send(text, output_)) return;
  }
  stream_.expires_after(shared_->timeout);
  asio::async_write(stream_, asio::buffer(output_),
                    [self = shared_from_this(), keeps_alive](error_code error, size_t) {
                      if (error || self->closed_) return;
                      self->output_.clear();
                      if (keeps_alive) {
                        self->read_request();
                      } else {
                        self->linger();
                      }
                    });
}

// Ends the connection without losing the answer. Closing a socket that has unread bytes resets it,
// and the reset may overtake the answer. So this sends the end of the stream and discards what
// still arrives, for at most kLingerTimeout.
void HttpSession::linger() {
  error_code ignored;
  stream_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
  stream_.expires_after(kLingerTimeout);
  discard();
}

void HttpSession::discard() {
  stream_.async_read_some(asio::buffer(buffer_),
                          [self = shared_from_this()](error_code error, size_t) {
                            if (!error && !self->closed_) self->discard();
                          });
}

}  // namespace

void Session::open(Peer peer, std::shared_ptr<const Shared> shared,
                   std::shared_ptr<Sessions> sessions) {
  std::make_shared<HttpSession>(std::move(peer), std::move(shared), std::move(sessions))
      ->read_request();
}

std::string answer_text(const AdminResponse& answer, const AnswerForm& form) {
  std::string text = form.is_http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ";
  text += std::to_string(answer.status) + " ";
  text += view(http::obsolete_reason(static_cast<http::status>(answer.status)));
  text += "\r\nServer: pboxd\r\nContent-Type: " + answer.content_type +
          "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n";
  if (answer.status == 405) text += "Allow: GET, HEAD, POST\r\n";
  if (form.is_http_1_0 == form.keeps_alive) {
    text += form.keeps_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  }
  text += "Content-Length: " + std::to_string(answer.body.size()) + "\r\n\r\n";
  if (form.has_body) text += answer.body;
  return text;
}

}  // namespace pbox::admin
