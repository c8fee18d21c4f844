#include "appliance/control/handshakes.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/check.h"
#include "base/cpu_set.h"

namespace pbox::control {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 4096;
constexpr size_t kDecidingBytes = 3;  // may_be_tls() needs no more

}  // namespace

struct Handshakes::Attempt {
  Attempt(tcp::socket opened, const nic::Endpoint& endpoint)
      : socket(std::move(opened)), peer(endpoint), timer(socket.get_executor()) {}

  tcp::socket socket;
  nic::Endpoint peer;
  asio::steady_timer timer;
  uint64_t number = 0;
  bool is_over = false;  // it has no place any more; handlers that still run do nothing
  bool is_noted = false;
  std::array<char, kReadBytes> buffer;
  std::string first_bytes;                              // until they show whether they may be TLS
  std::shared_ptr<const tls::Credentials> credentials;  // set together with `tls`
  std::unique_ptr<tls::Connection> tls;
  std::string plain;
  std::string to_peer;
};

Handshakes::Handshakes(asio::io_context& control,
                       std::shared_ptr<const tls::Credentials> credentials,
                       HandshakeOptions options, OnAccepted on_accepted, OnRefused on_refused)
    : control_(control),
      options_(std::move(options)),
      on_accepted_(std::move(on_accepted)),
      on_refused_(std::move(on_refused)),
      credentials_(std::move(credentials)),
      work_(context_.get_executor()) {
  PBOX_CHECK(credentials_ != nullptr && options_.limits.most > 0 &&
             options_.limits.most_per_address > 0);
  thread_ = std::thread([this] {
    name_current_thread("handshakes");
    context_.run();
  });
}

Handshakes::~Handshakes() {
  context_.stop();
  thread_.join();
  for (const auto& [number, attempt] : attempts_) {
    error_code ignored;
    attempt->socket.close(ignored);
  }
}

void Handshakes::set_credentials(std::shared_ptr<const tls::Credentials> credentials) {
  PBOX_CHECK(credentials != nullptr);
  asio::post(context_, [this, credentials = std::move(credentials)]() mutable {
    credentials_ = std::move(credentials);
  });
}

// If the thread lags behind, sockets wait for it too: at most as many as there are places.
void Handshakes::begin(tcp::socket& socket, const nic::Endpoint& peer) {
  if (count_ >= 2 * options_.limits.most) {
    return on_refused_(peer, "too many TLS handshakes are under way");
  }
  error_code error;
  const tcp protocol = peer.ipv6 ? tcp::v6() : tcp::v4();
  const int fd = socket.release(error);
  if (error) return;
  ++count_;
  auto attempt = std::make_shared<Attempt>(tcp::socket(context_, protocol, fd), peer);
  asio::post(context_, [this, attempt] { start(attempt); });
}

void Handshakes::start(const Pointer& attempt) {
  const std::string source = nic::source_of(attempt->peer);
  make_room(source);
  attempt->number = next_number_++;
  attempts_[attempt->number] = attempt;
  by_source_[source].insert(attempt->number);
  attempt->timer.expires_after(options_.limits.time);
  attempt->timer.async_wait([this, attempt](const error_code& error) {
    if (error || attempt->is_over) return;
    note(attempt, "the TLS handshake did not end within " +
                      std::to_string(options_.limits.time.count()) + " ms");
    end(attempt);
  });
  read(attempt);
}

void Handshakes::make_room(const std::string& source) {
  auto crowded = by_source_.find(source);
  if (crowded == by_source_.end() || crowded->second.size() < options_.limits.most_per_address) {
    if (attempts_.size() < options_.limits.most) return;
    crowded = std::max_element(by_source_.begin(), by_source_.end(),
                               [](const auto& left, const auto& right) {
                                 return left.second.size() < right.second.size();
                               });
  }
  PBOX_CHECK(crowded != by_source_.end() && !crowded->second.empty());
  const Pointer oldest = attempts_.at(*crowded->second.begin());
  note(oldest, "the TLS handshake was dropped for a newer one: this address had " +
                   std::to_string(crowded->second.size()) + " under way");
  end(oldest);
}

void Handshakes::read(const Pointer& attempt) {
  attempt->socket.async_read_some(asio::buffer(attempt->buffer),
                                  [this, attempt](const error_code& error, size_t bytes) {
                                    if (attempt->is_over) return;
                                    if (error) return end(attempt);
                                    take(attempt, bytes);
                                  });
}

void Handshakes::take(const Pointer& attempt, size_t bytes) {
  PBOX_CHECK(bytes <= attempt->buffer.size());
  std::string_view arrived(attempt->buffer.data(), bytes);
  if (attempt->tls == nullptr) {
    attempt->first_bytes += arrived;
    if (!tls::may_be_tls(attempt->first_bytes)) return refuse_plain_text(attempt);
    if (attempt->first_bytes.size() < kDecidingBytes) return read(attempt);
    attempt->credentials = credentials_;
    attempt->tls = credentials_->accept();
    arrived = attempt->first_bytes;
  }
  const Status taken = attempt->tls->receive(arrived, attempt->plain, attempt->to_peer);
  if (!taken) return refuse(attempt, "TLS: " + taken.error().message);
  if (attempt->to_peer.empty()) return go_on(attempt);
  asio::async_write(attempt->socket, asio::buffer(attempt->to_peer),
                    [this, attempt](const error_code& error, size_t) {
                      if (attempt->is_over) return;
                      if (error) return end(attempt);
                      attempt->to_peer.clear();
                      go_on(attempt);
                    });
}

void Handshakes::go_on(const Pointer& attempt) {
  if (attempt->tls->is_established()) return hand_over(attempt);
  read(attempt);
}

void Handshakes::hand_over(const Pointer& attempt) {
  error_code error;
  const tcp protocol = attempt->peer.ipv6 ? tcp::v6() : tcp::v4();
  const int fd = attempt->socket.release(error);
  if (error) return end(attempt);
  AcceptedPeer accepted{.socket = tcp::socket(control_, protocol, fd),
                        .endpoint = attempt->peer,
                        .tls = std::move(attempt->tls),
                        .plain = std::move(attempt->plain),
                        .credentials = attempt->credentials};
  end(attempt);
  asio::post(control_, [on_accepted = on_accepted_, accepted = std::move(accepted)]() mutable {
    on_accepted(std::move(accepted));
  });
}

void Handshakes::refuse_plain_text(const Pointer& attempt) {
  attempt->to_peer = options_.plain_text_answer;
  refuse(attempt, "it does not speak TLS, which this box requires; " + options_.plain_text_remedy);
}

// Sends the peer the reason, and reads on until the peer has closed the connection or its time is
// over. Closing a socket with unread bytes sends a reset, which may destroy the message.
void Handshakes::refuse(const Pointer& attempt, const std::string& why) {
  note(attempt, why);
  asio::async_write(attempt->socket, asio::buffer(attempt->to_peer),
                    [this, attempt](const error_code& error, size_t) {
                      if (attempt->is_over) return;
                      if (error) return end(attempt);
                      error_code ignored;
                      attempt->socket.shutdown(tcp::socket::shutdown_send, ignored);
                      discard(attempt);
                    });
}

void Handshakes::discard(const Pointer& attempt) {
  attempt->socket.async_read_some(asio::buffer(attempt->buffer),
                                  [this, attempt](const error_code& error, size_t) {
                                    if (attempt->is_over) return;
                                    if (error) return end(attempt);
                                    discard(attempt);
                                  });
}

// Reports the refusal. Only the first one of an attempt counts: a peer that has been refused may
// stay until its time is over.
void Handshakes::note(const Pointer& attempt, const std::string& why) {
  if (std::exchange(attempt->is_noted, true)) return;
  asio::post(control_,
             [on_refused = on_refused_, peer = attempt->peer, why] { on_refused(peer, why); });
}

void Handshakes::end(const Pointer& attempt) {
  PBOX_CHECK(!attempt->is_over && count_ > 0);
  attempt->is_over = true;
  attempt->timer.cancel();
  error_code ignored;
  attempt->socket.close(ignored);
  const auto source = by_source_.find(nic::source_of(attempt->peer));
  PBOX_CHECK(source != by_source_.end());
  source->second.erase(attempt->number);
  if (source->second.empty()) by_source_.erase(source);
  attempts_.erase(attempt->number);
  --count_;
}

}  // namespace pbox::control
