// The control connection with TLS, through libpbox_tls.so.1. The other end is a socket of the test.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/clock.h"
#include "nic/socket/address.h"
#include "nic/wire/control_frame.h"
#include "tests/support/key_folder.h"
#include "tests/support/loopback_listener.h"
#include "worker/transport/control_channel.h"
#include "worker/transport/tls_library.h"

namespace pbox::worker {
namespace {

using Catch::Contains;
using test::KeyFolder;

constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";

// Listens on loopback and takes one connection. `tls` is null for a box without keys.
class FakeBox {
 public:
  explicit FakeBox(std::unique_ptr<tls::Connection> tls = nullptr) : tls_(std::move(tls)) {
    name_ = "127.0.0.1:" + std::to_string(listener_.port());
  }
  ~FakeBox() { hang_up(); }

  const std::string& name() const { return name_; }
  // Takes what has arrived, and answers what TLS answers.
  void work() {
    if (fd_ < 0) fd_ = listener_.accept();
    char buffer[4096];
    const ssize_t bytes = fd_ < 0 ? 0 : recv(fd_, buffer, sizeof(buffer), 0);
    if (bytes <= 0) return;
    const std::string_view arrived(buffer, static_cast<size_t>(bytes));
    heard_anything_ = true;
    if (tls_ == nullptr) return;
    std::string to_peer;
    const Status taken = tls_->receive(arrived, plain_, to_peer);
    if (!taken) failure_ = taken.error().message;
    write(to_peer);
  }
  void say(const proto::BoxMessage& message) {
    const std::string framed = *wire::frame(message);
    std::string sealed;
    if (tls_) REQUIRE(tls_->send(framed, sealed).ok());
    write(tls_ ? sealed : framed);
  }
  void write(const std::string& bytes) {
    if (!bytes.empty()) REQUIRE(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
  }
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  bool has_peer() const { return heard_anything_; }
  const tls::Connection& tls() const { return *tls_; }
  const std::string& plain() const { return plain_; }
  const std::string& failure() const { return failure_; }

 private:
  std::unique_ptr<tls::Connection> tls_;
  test::LoopbackListener listener_;
  int fd_ = -1;
  std::string name_, plain_, failure_;
  bool heard_anything_ = false;
};

BoxAddresses::Addresses addresses_of(const std::string& box) {
  BoxAddresses addresses;
  for (;;) {
    if (auto found = addresses.find(box)) return **found;
    pollfd wait{addresses.fd(), POLLIN, 0};
    poll(&wait, 1, 1000);
  }
}

std::shared_ptr<const WorkerKeys> keys_of(const KeyFolder& folder) {
  auto keys = open_keys(folder.path());
  REQUIRE(keys.ok());
  return *keys;
}

ControlChannel open_channel(const FakeBox& box, const tls::Client* keys,
                            const std::string& name = "") {
  auto opened = ControlChannel::open({.box = box.name(), .keys = keys, .name = name},
                                     addresses_of(box.name()), UINT64_MAX);
  REQUIRE(opened.ok());
  return std::move(*opened);
}

void await_events(const ControlChannel& channel) {
  pollfd wait{channel.fd(), channel.events(), 0};
  REQUIRE(poll(&wait, 1, -1) == 1);
}

// Serves both ends until the channel is connected, or returns why it is not.
std::string connect(ControlChannel& channel, FakeBox& box) {
  for (;;) {
    pollfd wait{channel.fd(), channel.events(), 0};
    poll(&wait, 1, 1);
    box.work();
    const auto connected = channel.connected();
    if (!connected) return connected.error().message;
    if (*connected) return "";
  }
}

}  // namespace

TEST_CASE("a channel with keys proves and checks identities, and carries messages both ways") {
  const auto signer = test::authority();
  const KeyFolder worker(signer, kWorker), keys(signer, "pbox://rack/box/a");
  const auto client = keys_of(worker);
  FakeBox box(keys.load()->accept());
  auto channel = open_channel(box, client.get(), "a");
  REQUIRE(connect(channel, box).empty());
  // A channel can be moved, as in a recovery.
  auto moved = std::move(channel);
  proto::WorkerMessage question;
  question.mutable_heartbeat()->set_sequence(7);
  REQUIRE(moved.send(question).ok());
  while (box.plain().empty()) box.work();
  CHECK(box.plain() == *wire::frame(question));
  CHECK(tls::to_uri(box.tls().peer()) == kWorker);
  proto::BoxMessage answer;
  answer.mutable_heartbeat()->set_sequence(8);
  box.say(answer);
  for (;;) {
    const auto messages = moved.receive();
    REQUIRE(messages.ok());
    if (messages->empty()) continue;
    CHECK(messages->front().heartbeat().sequence() == 8);
    break;
  }
  box.hang_up();
  pollfd wait{moved.fd(), POLLIN, 0};
  poll(&wait, 1, -1);
  const auto over = moved.receive();
  REQUIRE_FALSE(over.ok());
  CHECK(over.error().code == ErrorCode::kBoxLost);
}

TEST_CASE("an address that is silent leaves time for the next address of the same name") {
  // Connections to this socket wait for ever, because its queue of connections is full.
  const test::LoopbackListener silent(0);
  const auto former = addresses_of("127.0.0.1:" + std::to_string(silent.port()));
  auto filler = ControlChannel::open({.box = "filler"}, former, UINT64_MAX);
  REQUIRE(filler.ok());
  await_events(*filler);
  FakeBox box;
  auto addresses = former;
  addresses.push_back(addresses_of(box.name()).front());
  auto channel =
      ControlChannel::open({.box = "box:9541"}, addresses, monotonic_ns() + kNanosPerSecond / 5);
  REQUIRE(channel.ok());
  CHECK(connect(*channel, box).empty());
  CHECK(channel->peer().port == nic::from_sockaddr(addresses[1].address).port);
}

TEST_CASE("a channel waits for reading, not for writing, while the box is silent") {
  const KeyFolder worker(test::authority(), kWorker);
  const auto client = keys_of(worker);
  FakeBox box;
  auto channel = open_channel(box, client.get());
  await_events(channel);
  const auto connected = channel.connected();
  REQUIRE(connected.ok());
  CHECK_FALSE(*connected);
  CHECK(channel.events() == POLLIN);
}

TEST_CASE("a channel refuses a box of another authority, and of another name") {
  const auto ours = test::authority(), theirs = test::authority();
  const KeyFolder worker(ours, kWorker);
  const auto client = keys_of(worker);
  {
    FakeBox box(KeyFolder(theirs, "pbox://rack/box/a").load()->accept());
    auto channel = open_channel(box, client.get());
    CHECK_THAT(connect(channel, box), Contains("TLS with box " + box.name()) &&
                                          Contains("no authority in ca.pem has signed it"));
  }
  FakeBox box(KeyFolder(ours, "pbox://rack/box/a").load()->accept());
  auto channel = open_channel(box, client.get(), "b");
  CHECK_THAT(connect(channel, box), Contains("the address of box 'b'"));
  while (box.failure().empty()) box.work();  // the box is told
}

TEST_CASE("each new connection has the keys that the folder holds then") {
  const auto former = test::authority(), next = test::authority();
  const KeyFolder worker(former, kWorker);
  const auto client = keys_of(worker);
  const auto connect_to = [&](const tls::KeyPair& signer) {
    FakeBox box(KeyFolder(signer, "pbox://rack/box/a").load()->accept());
    auto channel = open_channel(box, client.get(), "a");
    const std::string failure = connect(channel, box);
    while (failure.empty() && box.failure().empty() && !box.tls().is_established()) box.work();
    return failure + box.failure();
  };
  CHECK(connect_to(former).empty());
  CHECK_THAT(connect_to(next), Contains("no authority in ca.pem has signed it"));
  const auto renewed = *tls::issue(next, KeyFolder::order(kWorker));
  worker.write("cert.pem", renewed.certificate, 0644);
  worker.write("key.pem", renewed.key);
  CHECK(connect_to(former).empty());  // cert.pem does not fit ca.pem yet: the former keys serve
  worker.write("ca.pem", next.certificate, 0644);
  CHECK(connect_to(next).empty());
  CHECK_THAT(connect_to(former), Contains("no authority in ca.pem has signed it"));
}

TEST_CASE("a box that refuses the worker's certificate is believed, with the remedy") {
  const auto ours = test::authority(), theirs = test::authority();
  const KeyFolder worker(theirs, KeyFolder::order(kWorker), theirs.certificate + ours.certificate);
  const auto client = keys_of(worker);
  FakeBox box(KeyFolder(ours, "pbox://rack/box/a").load()->accept());
  auto channel = open_channel(box, client.get());
  REQUIRE(connect(channel, box).empty());  // the client's part of the handshake is done
  while (box.failure().empty()) box.work();
  box.hang_up();
  pollfd wait{channel.fd(), POLLIN, 0};
  poll(&wait, 1, -1);
  const auto refused = channel.receive();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(refused.error().message,
             Contains(worker.path() + "/cert.pem") && Contains("use keys of one cluster"));
}

TEST_CASE("a box without keys is told apart from a box that is lost") {
  const KeyFolder worker(test::authority(), kWorker);
  const auto client = keys_of(worker);
  FakeBox box;
  auto channel = open_channel(box, client.get());
  await_events(channel);
  REQUIRE(channel.connected().ok());
  while (!box.has_peer()) box.work();
  SECTION("it closes the connection") {
    box.hang_up();
    CHECK_THAT(connect(channel, box),
               Contains("during the TLS handshake") && Contains("[security] keys"));
  }
  SECTION("it answers in plain text") {
    proto::BoxMessage failure;
    failure.mutable_failure()->set_message("what is this?");
    box.say(failure);
    CHECK_THAT(connect(channel, box), Contains("does not speak TLS"));
  }
}

TEST_CASE("keys that cannot be read are an error with the folder and the remedy") {
  const auto client = open_keys("/nonexistent/keys");
  REQUIRE_FALSE(client.ok());
  CHECK_THAT(client.error().message,
             Contains("'/nonexistent/keys' (PBOX_KEYS)") && Contains("pboxctl keys"));
}

}  // namespace pbox::worker
