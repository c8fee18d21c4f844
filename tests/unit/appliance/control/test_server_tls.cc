// The control server with keys, over real sockets, driven by the test's own io_context.
#include <openssl/ssl.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <catch2/catch.hpp>
#include <list>

#include "nic/tls/pem.h"
#include "nic/tls/revocation.h"
#include "nic/wire/control_frame.h"
#include "tests/support/key_folder.h"
#include "tests/unit/appliance/control/service.h"

namespace pbox::control::server_tls_test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Catch::Contains;
using test::KeyFolder;

constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";

class KeyedService : public Service {
 public:
  explicit KeyedService(const tls::KeyPair& signer, const HandshakeLimits& limits = {})
      : Service(options(signer, limits)) {}

  // The texts of the refusals so far.
  std::vector<std::string> refusals() const {
    std::vector<std::string> texts;
    for (const RegistryEvent& event : events) {
      if (std::string("handshake_refused") == event.name) texts.push_back(event.text);
    }
    return texts;
  }

 private:
  static ControlOptions options(const tls::KeyPair& signer, const HandshakeLimits& limits) {
    ControlOptions options;
    options.credentials = KeyFolder(signer, "pbox://rack/box/a").load();
    options.handshakes = limits;
    return options;
  }
};

// A peer's end. Reads until the box closes the connection; `tls` is null for plain text.
class Peer {
 public:
  Peer(Service& service, std::unique_ptr<tls::Connection> tls,
       const std::string& from = "127.0.0.1")
      : socket_(service.context), tls_(std::move(tls)) {
    socket_.open(tcp::v4());
    socket_.bind({asio::ip::make_address(from), 0});
    socket_.connect(service.endpoint());
    if (tls_) take("");
    read();
  }
  void write(const std::string& bytes) { asio::write(socket_, asio::buffer(bytes)); }
  void say(const proto::WorkerMessage& message) {
    std::string bytes = *wire::frame(message);
    if (tls_) {
      std::string sealed;
      REQUIRE(tls_->send(bytes, sealed).ok());
      bytes = sealed;
    }
    write(bytes);
  }

  bool is_established() const { return tls_->is_established(); }
  const tls::Connection& tls() const { return *tls_; }
  bool is_closed() const { return is_closed_; }
  // Returns whether the box has closed both directions. In that case it resets further bytes.
  bool is_let_go() {
    boost::system::error_code error;
    socket_.write_some(asio::buffer("x", 1), error);
    return bool(error);
  }
  const std::string& failure() const { return failure_; }
  const std::vector<proto::BoxMessage>& heard() const { return heard_; }

 private:
  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [this, alive = std::weak_ptr(alive_)](const auto& error, size_t bytes) {
                              if (alive.expired()) return;
                              is_closed_ = bool(error);
                              if (error) return;
                              take({buffer_.data(), bytes});
                              read();
                            });
  }
  void take(const std::string& bytes) {
    std::string plain = bytes, to_box;
    if (tls_) {
      plain.clear();
      const Status taken = tls_->receive(bytes, plain, to_box);
      if (!taken && failure_.empty()) failure_ = taken.error().message;
      write(to_box);
    }
    reader_.append(plain.data(), plain.size());
    while (true) {
      const auto body = reader_.next();
      // A peer of plain text does not understand the box's handshake.
      if (!body && failure_.empty()) failure_ = body.error().message;
      if (!body || !*body) return;
      REQUIRE(heard_.emplace_back().ParseFromString(**body));
    }
  }

  tcp::socket socket_;
  std::unique_ptr<tls::Connection> tls_;
  wire::FrameReader reader_;
  std::array<char, 4096> buffer_;
  bool is_closed_ = false;
  std::string failure_;
  std::vector<proto::BoxMessage> heard_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>();
};

proto::WorkerMessage question() {
  proto::WorkerMessage message;
  message.mutable_ask_data_addresses();
  return message;
}

}  // namespace

TEST_CASE("a peer with keys is answered, and both ends derive the same secrets") {
  const auto signer = test::authority();
  KeyedService service(signer);
  const KeyFolder keys(signer, kWorker);
  Peer peer(service, keys.load()->connect("a"));
  service.run_until([&] { return peer.is_established(); });
  peer.say(question());
  service.run_until([&] { return !peer.heard().empty(); });
  CHECK(peer.heard()[0].has_data_addresses());
  CHECK(service.registry().connection_count() == 1);
  CHECK(service.server().handshakes_refused() == 0);

  std::array<std::byte, tls::kExportedSecretBytes> ours{}, theirs{};
  const std::array<std::byte, 3> context{std::byte(1), std::byte(2), std::byte(3)};
  REQUIRE(service.server().export_secret(1, context, theirs));
  peer.tls().export_secret(context, ours);
  CHECK(ours == theirs);
  CHECK_FALSE(service.server().export_secret(2, context, theirs));
}

TEST_CASE("messages that come with the end of the handshake are not lost") {
  const auto signer = test::authority();
  KeyedService service(signer);
  const auto credentials = KeyFolder(signer, kWorker).load();
  // The client's end, whose last flight is held back until there is a message behind it.
  auto tls = credentials->connect("");
  tcp::socket socket(service.context);
  socket.connect(service.endpoint());
  std::string plain, to_box;
  REQUIRE(tls->receive("", plain, to_box).ok());
  asio::write(socket, asio::buffer(to_box));
  to_box.clear();
  std::array<char, 4096> buffer;
  while (!tls->is_established()) {
    service.run_until([&] { return socket.available() > 0; });
    const size_t bytes = socket.read_some(asio::buffer(buffer));
    REQUIRE(tls->receive({buffer.data(), bytes}, plain, to_box).ok());
  }
  REQUIRE(tls->send(*wire::frame(question()), to_box).ok());
  asio::write(socket, asio::buffer(to_box));
  bool is_answered = false;
  socket.async_wait(tcp::socket::wait_read, [&](const auto&) { is_answered = true; });
  service.run_until([&] { return is_answered; });
}

TEST_CASE("a peer without TLS gets an answer that it can read, and the operator the remedy") {
  KeyedService service(test::authority());
  Peer peer(service, nullptr);
  peer.say(question());
  service.run_until([&] { return peer.is_closed() && !service.refusals().empty(); });
  REQUIRE(peer.heard().size() == 1);
  CHECK_THAT(peer.heard()[0].failure().message(), Contains("PBOX_KEYS"));
  CHECK_THAT(service.refusals()[0],
             Contains("127.0.0.1:") && Contains("does not speak TLS") && Contains("PBOX_KEYS"));
  CHECK(service.server().handshakes_refused() == 1);
  CHECK(service.registry().connection_count() == 0);
}

TEST_CASE("peers with wrong certificates are refused and told why") {
  const auto signer = test::authority(), other = test::authority();
  KeyedService service(signer);
  struct Row {
    std::string ours, theirs;  // text of the peer's error, and of the box's log
    std::shared_ptr<const tls::Credentials> keys;
  };
  const auto keys_of = [](const tls::KeyPair& by, const char* uri, const std::string& trusted) {
    return KeyFolder(by, KeyFolder::order(uri), trusted).load();
  };
  const auto both = other.certificate + signer.certificate;
  const std::vector<Row> rows = {
      {"does not accept", "no authority in ca.pem has signed it", keys_of(other, kWorker, both)},
      {"no authority in ca.pem has signed it", "does not accept",
       keys_of(other, kWorker, other.certificate)},
      {"these keys are of cluster 'lab'",
       "TLS: ", keys_of(signer, "pbox://lab/viewer", signer.certificate)}};
  for (const Row& row : rows) {
    service.events.clear();
    Peer peer(service, row.keys->connect(""));
    service.run_until([&] { return !service.refusals().empty() && !peer.failure().empty(); });
    CHECK_THAT(peer.failure(), Contains(row.ours));
    CHECK_THAT(service.refusals()[0], Contains(row.theirs));
  }
  CHECK(service.registry().connection_count() == 0);
}

TEST_CASE("after a reload live connections end whose peers the new keys refuse, and only those") {
  const auto former = test::authority(), next = test::authority();
  KeyedService service(former);
  const KeyFolder stolen(former, kWorker), kept(former, kWorker);
  Peer gone(service, stolen.load()->connect(""));
  Peer stays(service, kept.load()->connect(""));
  service.run_until([&] { return service.registry().connection_count() == 2; });
  const auto reload = [&](const std::string& trusted, const std::string& lists) {
    const KeyFolder box(next, KeyFolder::order("pbox://rack/box/a"), trusted);
    if (!lists.empty()) box.write("crl.pem", lists);
    service.server().set_credentials(box.load());
  };
  const std::string both = former.certificate + next.certificate;
  const std::vector<tls::KeyPair> authorities = {former};
  const auto certificate = tls::read_pem_file(stolen.path() + "/cert.pem");
  reload(both, tls::revoke(authorities, "", *certificate, std::time(nullptr))->lists);
  service.run_until([&] { return gone.is_closed(); });
  stays.say(question());
  service.run_until([&] { return !stays.heard().empty(); });
  CHECK(service.registry().connection_count() == 1);
  REQUIRE(service.noted("peer_withdrawn"));
  CHECK_THAT(service.events.front().text, Contains(kWorker) && Contains("it is revoked"));
  // A new connection proves the box's new certificate, which the former authority has not signed.
  const KeyFolder renewed(next, KeyFolder::order(kWorker), next.certificate);
  Peer later(service, renewed.load()->connect("a"));
  service.run_until([&] { return service.registry().connection_count() == 2; });
  reload(next.certificate, "");
  service.run_until([&] { return stays.is_closed(); });
  later.say(question());
  service.run_until([&] { return !later.heard().empty(); });
  CHECK(service.registry().connection_count() == 1);
}

TEST_CASE("a handshake that a reload overtakes is held to the new keys") {
  const auto former = test::authority(), next = test::authority();
  KeyedService service(former);
  const KeyFolder keys(former, kWorker);
  Peer peer(service, keys.load()->connect(""));
  const KeyFolder box(next, "pbox://rack/box/a");
  // The peer has ended its handshake, but the box's control thread, which is this thread, has no
  // connection yet.
  service.run_until([&] { return peer.is_established(); });
  REQUIRE(service.registry().connection_count() == 0);
  service.server().set_credentials(box.load());
  service.run_until([&] { return peer.is_closed(); });
  CHECK(service.registry().connection_count() == 0);
}

TEST_CASE("the control connections' bounds and time-outs hold with TLS as without") {
  const auto signer = test::authority();
  KeyedService service(signer);
  service.server().set_connections_max(1);
  const KeyFolder keys(signer, kWorker);
  Peer first(service, keys.load()->connect(""));
  service.run_until([&] { return service.registry().connection_count() == 1; });
  Peer second(service, keys.load()->connect(""));
  service.run_until([&] { return second.is_closed(); });
  CHECK_FALSE(first.is_closed());
}

TEST_CASE("a large message to the box arrives whole") {
  const auto signer = test::authority();
  KeyedService service(signer);
  const KeyFolder keys(signer, kWorker);
  Peer peer(service, keys.load()->connect(""));
  service.run_until([&] { return peer.is_established(); });
  proto::WorkerMessage message = question();
  message.add_needs(std::string(500'000, 'x'));
  peer.say(message);
  service.run_until([&] { return !peer.heard().empty(); });
  CHECK(peer.heard()[0].has_failure());  // it needs a field of that name
}

TEST_CASE("a silent peer loses its place when its time is over") {
  const auto signer = test::authority();
  KeyedService service(signer, {.time = std::chrono::milliseconds(20)});
  Peer silent(service, nullptr);
  service.run_until([&] { return silent.is_closed() && !service.refusals().empty(); });
  CHECK_THAT(service.refusals()[0], Contains("did not end within 20 ms"));
}

TEST_CASE("a refused peer that stays until its time is over counts once") {
  KeyedService service(test::authority(), {.time = std::chrono::milliseconds(100)});
  Peer peer(service, nullptr);
  peer.say(question());
  service.run_until([&] { return peer.is_let_go(); });
  service.context.poll();
  CHECK(service.refusals().size() == 1);
  CHECK(service.server().handshakes_refused() == 1);
}

TEST_CASE("a flood of half-open handshakes takes places from itself, not from an honest worker") {
  const auto signer = test::authority();
  const KeyFolder keys(signer, kWorker);
  const auto credentials = keys.load();
  KeyedService service(signer, {.most = 8, .most_per_address = 4, .time = std::chrono::hours(1)});
  std::list<Peer> flood;
  const auto has_lost = [&](size_t count) { return service.refusals().size() >= count; };
  SECTION("from one address") {
    for (int index = 0; index < 4 + 3; ++index) flood.emplace_back(service, nullptr, "127.0.0.2");
    service.run_until([&] { return has_lost(3); });
    CHECK_THAT(service.refusals()[0],
               Contains("127.0.0.2:") && Contains("dropped for a newer one"));
  }
  SECTION("from the honest worker's own address") {
    for (int index = 0; index < 4 + 3; ++index) flood.emplace_back(service, nullptr, "127.0.0.1");
    service.run_until([&] { return has_lost(3); });
  }
  SECTION("from many addresses") {
    for (int index = 0; index < 8 + 3; ++index) {
      flood.emplace_back(service, nullptr, "127.0.1." + std::to_string(index + 1));
    }
    service.run_until([&] { return has_lost(3); });
  }
  SECTION("with the first bytes of TLS") {
    for (int index = 0; index < 4 + 3; ++index) {
      std::string plain, hello;
      REQUIRE(credentials->connect("")->receive("", plain, hello).ok());
      flood.emplace_back(service, nullptr, "127.0.0.2").write(hello);
    }
    service.run_until([&] { return has_lost(3); });
  }
  Peer honest(service, credentials->connect(""));
  service.run_until([&] { return service.registry().connection_count() == 1; });
  honest.say(question());
  service.run_until([&] { return !honest.heard().empty(); });
  CHECK(honest.heard()[0].has_data_addresses());
  // An established connection does not count among the handshakes, whose number is limited.
  CHECK_FALSE(honest.is_closed());
}

TEST_CASE("the server ends while handshakes are under way") {
  const auto signer = test::authority();
  std::list<Peer> peers;
  KeyedService service(signer);
  for (int index = 0; index < 8; ++index) peers.emplace_back(service, nullptr);
  peers.emplace_back(service, KeyFolder(signer, kWorker).load()->connect(""));
  service.run_until([&] { return service.registry().connection_count() == 1; });
  peers.clear();
}

}  // namespace pbox::control::server_tls_test
