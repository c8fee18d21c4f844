#include "appliance/cluster/ask_box.h"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>

#include "appliance/cluster/environment.h"
#include "base/check.h"
#include "nic/wire/control_frame.h"

namespace pbox::cluster {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Answer = Result<proto::BoxMessage>;

// One connection that asks one question. It ends at the first failing step or the first message.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  // `tls`: a connection whose handshake has not begun; null: the question is sent without TLS.
  Attempt(asio::io_context& context, std::unique_ptr<tls::Connection> tls, std::string control,
          std::string question, std::function<void(Answer)> done)
      : socket_(context),
        timer_(context),
        tls_(std::move(tls)),
        control_(std::move(control)),
        question_(std::move(question)),
        done_(std::move(done)) {}

  void begin(std::chrono::milliseconds timeout) {
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->fail("no answer");
    });
    const size_t colon = std::min(control_.rfind(':'), control_.size());
    std::string host = control_.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    error_code malformed;
    const auto address = asio::ip::make_address(host, malformed);
    const auto port =
        std::strtoul(control_.c_str() + std::min(colon + 1, control_.size()), nullptr, 10);
    if (malformed) return fail_later(malformed.message());
    socket_.async_connect({address, static_cast<uint16_t>(port)},
                          [self = shared_from_this()](const error_code& error) {
                            if (error) return self->fail(error.message());
                            self->ask();
                          });
  }

 private:
  void fail_later(const std::string& why) {
    timer_.expires_after(std::chrono::milliseconds(0));
    timer_.async_wait([self = shared_from_this(), why](const error_code&) { self->fail(why); });
  }

  void ask() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (tls_ == nullptr) return write(std::move(question_));
    shake_hands({});
  }

  // The question follows the last bytes of the handshake. A handshake that fails ends with the
  // error of TLS and not with kUnavailable: the box has answered, so it is not lost.
  void shake_hands(std::string_view arrived) {
    std::string to_box;
    Status done = tls_->receive(arrived, plain_, to_box);
    if (done && tls_->is_established()) done = tls_->send(question_, to_box);
    if (!done) {
      failure_ = Error{done.error().code, control_ + ": TLS: " + done.error().message};
    }
    write(std::move(to_box));
  }

  void write(std::string bytes) {
    outgoing_ = std::move(bytes);
    asio::async_write(socket_, asio::buffer(outgoing_),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (self->failure_) return self->end(*self->failure_);
                        if (error) return self->fail(error.message());
                        self->read();
                      });
  }

  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](const error_code& error, size_t bytes) {
                              if (error) return self->fail(self->while_reading(error));
                              self->received(bytes);
                            });
  }

  std::string while_reading(const error_code& error) const {
    const bool is_begun = tls_ != nullptr && !tls_->is_established();
    return error.message() +
           (is_begun ? " during the TLS handshake; does that box have keys ([security] keys)?"
                     : "");
  }

  void received(size_t bytes) {
    PBOX_DCHECK(bytes <= buffer_.size());
    const std::string_view arrived(buffer_.data(), bytes);
    if (tls_ == nullptr) {
      plain_ = arrived;
    } else if (!tls_->is_established()) {
      return shake_hands(arrived);
    } else if (const Status opened = tls_->receive(arrived, plain_, outgoing_); !opened) {
      return end(Error{opened.error().code, control_ + ": TLS: " + opened.error().message});
    }
    reader_.append(plain_.data(), plain_.size());
    plain_.clear();
    const auto body = reader_.next();
    if (!body) return fail(body.error().message);
    if (!body->has_value()) return read();
    proto::BoxMessage message;
    if (!message.ParseFromString(**body)) return fail("the answer is not a control message");
    if (!message.has_failure()) return end(std::move(message));
    end(Error{static_cast<ErrorCode>(message.failure().code()), message.failure().message()});
  }

  void fail(const std::string& why) { end(Error{ErrorCode::kUnavailable, control_ + ": " + why}); }

  void end(Answer answer) {
    if (!done_) return;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    const auto done = std::exchange(done_, nullptr);
    done(std::move(answer));
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  std::unique_ptr<tls::Connection> tls_;
  std::optional<Error> failure_;  // the handshake's; reported once the box has been told
  std::string outgoing_;
  std::string plain_;
  std::string control_;
  std::string question_;
  std::function<void(Answer)> done_;
  wire::FrameReader reader_;
  std::array<char, 64 * 1024> buffer_{};
};

}  // namespace

void Environment::ask_box(const std::string& control, const proto::WorkerMessage& question,
                          std::chrono::milliseconds timeout, Environment::Answer done) {
  PBOX_CHECK(done != nullptr);
  auto& io_context = static_cast<asio::io_context&>(context());
  auto tls = keys_ ? keys_->connect(name_of_(control)) : nullptr;
  std::make_shared<Attempt>(io_context, std::move(tls), control, *wire::frame(question),
                            std::move(done))
      ->begin(timeout);
}

void ask_box(asio::io_context& context, const std::string& control,
             const proto::WorkerMessage& question, std::chrono::milliseconds timeout,
             std::function<void(Answer)> done) {
  Environment::of(context).ask_box(control, question, timeout, std::move(done));
}

void probe(asio::io_context& context, const std::string& control,
           const proto::AskDataAddresses& question, std::chrono::milliseconds timeout,
           std::function<void(const Result<proto::DataAddresses>&)> done) {
  proto::WorkerMessage message;
  *message.mutable_ask_data_addresses() = question;
  ask_box(context, control, message, timeout, [done = std::move(done)](const Answer& answer) {
    const bool is_silent = !answer && answer.error().code == ErrorCode::kUnavailable;
    if (is_silent) return done(answer.error());
    done(answer ? answer->data_addresses() : proto::DataAddresses());
  });
}

}  // namespace pbox::cluster
