// Questions to another box over TLS. The other box is a socket of the test, on the same io_context.
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <optional>

#include "appliance/cluster/ask_box.h"
#include "appliance/cluster/environment.h"
#include "nic/wire/control_frame.h"
#include "tests/support/key_folder.h"

namespace pbox::cluster::ask_box_test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Catch::Contains;
using test::KeyFolder;
using Answer = Result<proto::BoxMessage>;

// Takes one connection and answers its first message with a report. If `tls` is null, this box has
// no keys, and closes the connection at the first byte that is not a message.
class OtherBox {
 public:
  OtherBox(asio::io_context& context, std::unique_ptr<tls::Connection> tls)
      : acceptor_(context, {asio::ip::address_v4::loopback(), 0}),
        socket_(context),
        tls_(std::move(tls)) {
    acceptor_.async_accept(socket_, [this](const auto& error) {
      if (!error) read();
    });
  }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  const tls::Connection& tls() const { return *tls_; }
  const std::string& failure() const { return failure_; }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(buffer_), [this](const auto& error, size_t bytes) {
      if (error) return;
      if (tls_ == nullptr) return socket_.close();
      std::string plain, to_peer;
      const Status taken = tls_->receive({buffer_.data(), bytes}, plain, to_peer);
      if (!taken) failure_ = taken.error().message;
      reader_.append(plain.data(), plain.size());
      if (*reader_.next()) {
        proto::BoxMessage answer;
        answer.mutable_report()->set_jobs_free(7);
        REQUIRE(tls_->send(*wire::frame(answer), to_peer).ok());
      }
      if (!to_peer.empty()) asio::write(socket_, asio::buffer(to_peer));
      if (taken) read();
    });
  }

  tcp::acceptor acceptor_;
  tcp::socket socket_;
  std::unique_ptr<tls::Connection> tls_;
  wire::FrameReader reader_;
  std::array<char, 4096> buffer_;
  std::string failure_;
};

// Gives the asking box these keys. The box that is asked must prove the name `name`; if that is
// empty, it may be any box of the cluster.
void use_keys(asio::io_context& context, const KeyFolder& keys, const std::string& name = "") {
  Environment::of(context).set_keys(keys.load(), [name](const std::string&) { return name; });
}

Answer ask(asio::io_context& context, const std::string& box) {
  proto::WorkerMessage question;
  question.mutable_ask_report();
  std::optional<Answer> answer;
  ask_box(context, box, question, std::chrono::seconds(60),
          [&](Answer given) { answer = std::move(given); });
  while (!answer) context.run_one();
  return std::move(*answer);
}

}  // namespace

TEST_CASE("boxes with keys of one cluster answer each other") {
  const auto signer = test::authority();
  asio::io_context context;
  use_keys(context, KeyFolder(signer, "pbox://rack/box/a"));
  OtherBox other(context, KeyFolder(signer, "pbox://rack/box/b").load()->accept());
  const Answer answer = ask(context, other.address());
  REQUIRE(answer.ok());
  CHECK(answer->report().jobs_free() == 7);
  CHECK(tls::to_uri(other.tls().peer()) == "pbox://rack/box/a");
}

TEST_CASE("a box that is not of the cluster is refused, but does not count as lost") {
  const auto ours = test::authority(), theirs = test::authority();
  asio::io_context context;
  use_keys(context, KeyFolder(ours, "pbox://rack/box/a"));
  OtherBox other(context, KeyFolder(theirs, "pbox://rack/box/b").load()->accept());
  const Answer answer = ask(context, other.address());
  REQUIRE_FALSE(answer.ok());
  CHECK(answer.error().code != ErrorCode::kUnavailable);
  CHECK_THAT(answer.error().message,
             Contains(other.address()) && Contains("no authority in ca.pem has signed it"));
  while (other.failure().empty()) context.run_one();  // the refused box learns of it
}

TEST_CASE("a box must prove the name that the cluster knows it by") {
  const auto signer = test::authority();
  asio::io_context context;
  use_keys(context, KeyFolder(signer, "pbox://rack/box/a"), "b");
  OtherBox right(context, KeyFolder(signer, "pbox://rack/box/b").load()->accept());
  CHECK(ask(context, right.address()).ok());
  OtherBox wrong(context, KeyFolder(signer, "pbox://rack/box/c").load()->accept());
  const Answer answer = ask(context, wrong.address());
  REQUIRE_FALSE(answer.ok());
  CHECK_THAT(answer.error().message, Contains("the address of box 'b'"));
}

TEST_CASE("a box without keys is named as such") {
  asio::io_context context;
  use_keys(context, KeyFolder(test::authority(), "pbox://rack/box/a"));
  OtherBox other(context, nullptr);
  const Answer answer = ask(context, other.address());
  REQUIRE_FALSE(answer.ok());
  CHECK_THAT(answer.error().message, Contains("during the TLS handshake"));
}

}  // namespace pbox::cluster::ask_box_test
