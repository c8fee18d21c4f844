// The control server over real sockets, driven by the test's own io_context.

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>

#include "base/clock.h"
#include "nic/wire/control_frame.h"
#include "tests/support/no_free_descriptors.h"
#include "tests/unit/appliance/control/service.h"

namespace pbox::control::server_test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Catch::Contains;

// A worker's end of a control connection.
struct Peer {
  explicit Peer(Service& service) : socket(service.context) { socket.connect(service.endpoint()); }
  void say(const proto::WorkerMessage& message) {
    asio::write(socket, asio::buffer(*wire::frame(message)));
  }
  // Ends its operations while what their handlers use still exists.
  void end(Service& service) {
    socket.close();
    service.context.restart();
    service.context.poll();
  }
  tcp::socket socket;
};

proto::WorkerMessage priorities(uint32_t tensors) {
  proto::WorkerMessage message;
  for (uint32_t tensor = 0; tensor < tensors; ++tensor) {
    message.mutable_set_priorities()->add_by_tensor(INT32_MIN);  // at least five bytes each
  }
  return message;
}

proto::WorkerMessage join_with_tensors(uint32_t rank, uint32_t tensors) {
  auto message = join_message("job", rank, 2);
  message.mutable_join()->clear_tensors();
  for (uint32_t index = 0; index < tensors; ++index) {
    auto& tensor = *message.mutable_join()->add_tensors();
    tensor.set_name(std::to_string(index));
    tensor.set_elements(1);
    tensor.set_lr_scale(1);
  }
  return message;
}

}  // namespace

TEST_CASE("a server without free file descriptors waits before it accepts again, and says so") {
  Service service;
  Peer peer(service);
  {
    const test::NoFreeDescriptors none;
    service.run_until([&] { return service.noted("accept_failed"); });
    service.context.poll();  // would not return if accepting failed over and over
    CHECK(service.registry().connection_count() == 0);
  }
  service.run_until([&] { return service.registry().connection_count() == 1; });
}

TEST_CASE("a peer that does not read is dropped once too many bytes wait for it") {
  constexpr uint32_t kTensors = 40'000;
  // A slow build may take longer than the usual time-out for silence to queue that many bytes.
  RegistryOptions limits;
  limits.dead_after_ns = 120 * kNanosPerSecond;
  Service service({}, limits);
  Peer mute(service), talker(service);
  mute.say(join_with_tensors(0, kTensors));
  talker.say(join_with_tensors(1, kTensors));
  service.run_until([&] { return service.noted("job_started"); });
  // Each message of the talker is sent to both ranks. Only the talker reads.
  std::vector<char> sink(1 << 20);
  std::function<void()> drain = [&] {
    talker.socket.async_read_some(asio::buffer(sink), [&](boost::system::error_code error, size_t) {
      if (!error) drain();
    });
  };
  drain();
  const std::string message = *wire::frame(priorities(kTensors));
  size_t queued_max = 0;
  std::function<void()> talk = [&] {
    asio::async_write(talker.socket, asio::buffer(message),
                      [&](boost::system::error_code error, size_t) {
                        if (!error && !service.noted("worker_lost")) talk();
                      });
  };
  talk();
  service.run_until([&] {
    queued_max = std::max(queued_max, service.server().queued_bytes());
    return service.noted("worker_lost");
  });
  // The bound on bytes ended the connection, not the time-out for silence.
  CHECK_THAT(service.text_of("worker_lost"), Contains("before it had read everything"));
  CHECK(queued_max <= (17u << 20));
  CHECK(service.registry().connection_count() <= 2);
  talker.end(service);
}

TEST_CASE("a peer that asks and does not read its answers is not heard until it reads") {
  Service service;
  Peer peer(service);
  proto::WorkerMessage question;
  question.mutable_ask_data_addresses();
  std::string questions;
  for (int count = 0; count < 10'000; ++count) questions += *wire::frame(question);
  bool is_stuck = false;
  size_t written = 0;
  std::function<void()> ask = [&] {
    peer.socket.async_write_some(asio::buffer(questions),
                                 [&](boost::system::error_code error, size_t bytes) {
                                   written += bytes;
                                   if (!error && written < (64u << 20)) ask();
                                 });
  };
  ask();
  size_t at_rest = 0;
  service.run_until([&] {
    const size_t before = written;
    service.context.run_for(std::chrono::milliseconds(300));
    is_stuck = before == written && service.server().queued_bytes() > 0;
    at_rest = service.server().queued_bytes();
    return is_stuck || written >= (64u << 20);
  });
  CHECK(is_stuck);
  CHECK(at_rest < (1u << 20));
  peer.end(service);
}

TEST_CASE("a peer that speaks TLS to a box without keys is not left waiting") {
  Service service;
  Peer peer(service);
  // A TLS ClientHello begins like this. As a control message it would announce 66,326 bytes.
  const std::string hello("\x16\x03\x01\x00\xf0\x01\x00\x00\xec", 9);
  for (const char byte : hello) asio::write(peer.socket, asio::buffer(&byte, 1));
  bool is_closed = false;
  char byte = 0;
  peer.socket.async_read_some(asio::buffer(&byte, 1),
                              [&](const auto& error, size_t) { is_closed = bool(error); });
  service.run_until([&] { return is_closed; });
  REQUIRE(service.noted("handshake_refused"));
  CHECK_THAT(service.events.back().text,
             Contains("127.0.0.1:") && Contains("[security] keys") && Contains("PBOX_KEYS"));
  peer.end(service);
}

}  // namespace pbox::control::server_test
