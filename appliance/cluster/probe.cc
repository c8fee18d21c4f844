#include "appliance/cluster/probe.h"

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <memory>

#include "nic/wire/control_frame.h"

namespace pbox::cluster {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Ends with the first step that fails, or with the first bytes of the answer.
class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  Attempt(asio::io_context& context, std::string control,
          std::function<void(const std::string&)> done)
      : socket_(context), timer_(context), control_(std::move(control)), done_(std::move(done)) {}

  void begin(std::chrono::milliseconds timeout) {
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->end("no answer");
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
                            if (error) return self->end(error.message());
                            self->ask();
                          });
  }

 private:
  void fail_later(const std::string& why) {
    timer_.expires_after(std::chrono::milliseconds(0));
    timer_.async_wait([self = shared_from_this(), why](const error_code&) { self->end(why); });
  }

  void ask() {
    control::WorkerMessage question;
    question.mutable_ask_data_addresses();
    question_ = *wire::frame(question);
    asio::async_write(socket_, asio::buffer(question_),
                      [self = shared_from_this()](const error_code& error, size_t) {
                        if (error) return self->end(error.message());
                        self->read();
                      });
  }

  void read() {
    asio::async_read(socket_, asio::buffer(answer_),
                     [self = shared_from_this()](const error_code& error, size_t) {
                       self->end(error ? error.message() : "");
                     });
  }

  void end(const std::string& why) {
    if (!done_) return;
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    const auto done = std::exchange(done_, nullptr);
    done(why.empty() ? why : control_ + ": " + why);
  }

  tcp::socket socket_;
  asio::steady_timer timer_;
  std::string control_;
  std::function<void(const std::string&)> done_;
  std::string question_;
  std::array<char, wire::kControlLengthBytes> answer_{};
};

}  // namespace

void probe(asio::io_context& context, const std::string& control, std::chrono::milliseconds timeout,
           std::function<void(const std::string& failure)> done) {
  std::make_shared<Attempt>(context, control, std::move(done))->begin(timeout);
}

}  // namespace pbox::cluster
