// Two ends of a TLS connection in memory.
#include <openssl/ssl.h>

#include <array>
#include <catch2/catch.hpp>

#include "nic/tls/openssl_types.h"
#include "nic/tls/pem.h"
#include "tests/support/key_folder.h"

namespace pbox::test::connection_test {
namespace {

using Catch::Contains;
using tls::Connection;

const std::string kWorker = "pbox://rack/tenant/acme/job/*/rank/0-3";

struct End {
  std::unique_ptr<Connection> connection;
  std::string plain = {};    // decrypted bytes from the peer
  std::string to_peer = {};  // bytes in flight
  std::string failure = {};

  void take(const std::string& bytes) {
    if (!failure.empty()) return;
    const Status taken = connection->receive(bytes, plain, to_peer);
    if (!taken) failure = taken.error().message;
  }
  void say(const std::string& text) { REQUIRE(connection->send(text, to_peer).ok()); }
};

struct Pair {
  Pair(const KeyFolder& worker, const KeyFolder& box, const std::string& name = "")
      : client{.connection = worker.load()->connect(name)},
        server{.connection = box.load()->accept()} {
    client.take("");
  }

  // Exchanges bytes, `piece` at a time, until neither end has any for the other.
  void run(size_t piece = SIZE_MAX) {
    while (!client.to_peer.empty() || !server.to_peer.empty()) {
      pass(client, server, piece);
      pass(server, client, piece);
    }
  }
  static void pass(End& from, End& to, size_t piece) {
    const std::string bytes = from.to_peer.substr(0, piece);
    from.to_peer.erase(0, bytes.size());
    if (!bytes.empty()) to.take(bytes);
  }
  bool is_established() const {
    return client.failure.empty() && server.failure.empty() &&
           client.connection->is_established() && server.connection->is_established();
  }

  End client, server;
};

std::string exported(const End& end, const std::string& context) {
  std::array<std::byte, tls::kExportedSecretBytes> secret;
  end.connection->export_secret(std::as_bytes(std::span(context)), secret);
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

// A client of OpenSSL's own, which does not follow the rules of ours.
class StrangeClient {
 public:
  // Has no certificate if `keys` is empty.
  StrangeClient(int version, const tls::KeyPair& keys)
      : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_max_proto_version(context_.get(), version);
    if (!keys.key.empty()) {
      SSL_CTX_use_certificate(context_.get(), tls::parse_certificates(keys.certificate)[0].get());
      SSL_CTX_use_PrivateKey(context_.get(), tls::parse_private_key(keys.key).get());
    }
    ssl_.reset(SSL_new(context_.get()));
    from_peer_ = BIO_new(BIO_s_mem());
    to_peer_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);
    SSL_set_connect_state(ssl_.get());
  }
  std::string answer(const std::string& bytes) {
    BIO_write(from_peer_, bytes.data(), static_cast<int>(bytes.size()));
    SSL_do_handshake(ssl_.get());
    char* text = nullptr;
    const long count = BIO_get_mem_data(to_peer_, &text);
    std::string out(text, static_cast<size_t>(count));
    BIO_reset(to_peer_);
    return out;
  }
  // Sends one more certificate after its own.
  void send_also(const X509* certificate) {
    SSL_add1_chain_cert(ssl_.get(), const_cast<X509*>(certificate));
  }

 private:
  tls::Owned<SSL_CTX> context_;
  tls::Owned<SSL> ssl_;
  BIO* from_peer_ = nullptr;
  BIO* to_peer_ = nullptr;
};

}  // namespace

TEST_CASE("both ends learn each other's identity and exchange messages") {
  const auto signer = authority();
  const KeyFolder worker(signer, kWorker), box(signer, "pbox://rack/box/a");
  for (const size_t piece : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Pair pair(worker, box, "a");
    pair.run(piece);
    REQUIRE(pair.is_established());
    CHECK(tls::to_uri(pair.client.connection->peer()) == "pbox://rack/box/a");
    CHECK(tls::to_uri(pair.server.connection->peer()) == kWorker);
    CHECK(pair.client.connection->peer_certificates() ==
          *tls::read_pem_file(box.path() + "/cert.pem"));
    CHECK(pair.server.connection->peer_certificates() ==
          *tls::read_pem_file(worker.path() + "/cert.pem"));
    const std::string large(100'000, 'x');
    pair.client.say("to the box");
    pair.client.say(large);
    pair.server.say("to the worker");
    CHECK(pair.client.to_peer.find("to the box") == std::string::npos);
    pair.run(piece);
    CHECK(pair.server.plain == "to the box" + large);
    CHECK(pair.client.plain == "to the worker");
  }
}

TEST_CASE("both ends export the same secret, another one for each context and connection") {
  const auto signer = authority();
  const KeyFolder worker(signer, kWorker), box(signer, "pbox://rack/box/a");
  Pair pair(worker, box), other(worker, box);
  pair.run();
  other.run();
  REQUIRE((pair.is_established() && other.is_established()));
  const std::string secret = exported(pair.client, "context");
  CHECK(secret == exported(pair.server, "context"));
  CHECK(secret == exported(pair.client, "context"));
  CHECK(secret != exported(pair.server, "another"));
  CHECK(secret != exported(pair.server, ""));
  CHECK(secret != exported(other.client, "context"));
}

TEST_CASE("no ticket is sent, so no session is ever resumed") {
  const auto signer = authority();
  Pair pair(KeyFolder(signer, kWorker), KeyFolder(signer, "pbox://rack/box/a"));
  while (!pair.server.connection->is_established()) {
    Pair::pass(pair.client, pair.server, SIZE_MAX);
    if (!pair.server.connection->is_established()) {
      Pair::pass(pair.server, pair.client, SIZE_MAX);
    }
  }
  CHECK(pair.server.to_peer.empty());
}

TEST_CASE("an end refuses a peer of another authority, and the peer learns why") {
  const auto ours = authority(), theirs = authority();
  SECTION("the box's") {
    Pair pair(KeyFolder(ours, kWorker), KeyFolder(theirs, "pbox://rack/box/a"));
    pair.run();
    CHECK_THAT(pair.client.failure, Contains("no authority in ca.pem has signed it"));
    CHECK_THAT(pair.server.failure, Contains("the peer does not accept the certificate"));
  }
  SECTION("the worker's") {
    const KeyFolder worker(theirs, KeyFolder::order(kWorker),
                           theirs.certificate + ours.certificate);
    Pair pair(worker, KeyFolder(ours, "pbox://rack/box/a"));
    pair.run();
    CHECK_THAT(pair.server.failure, Contains("no authority in ca.pem has signed it"));
    CHECK_THAT(pair.client.failure,
               Contains(worker.path() + "/cert.pem") && Contains("keys of one cluster"));
  }
}

TEST_CASE("identities of another cluster, of another box and of no box are refused") {
  const auto signer = authority();
  struct Row {
    const char* worker;
    const char* box;
    const char* name;
    const char* failure;
  };
  for (const Row& row : std::vector<Row>{
           {"pbox://rack/viewer", "pbox://lab/box/a", "", "these keys are of cluster 'rack'"},
           {"pbox://rack/viewer", "pbox://rack/box/a", "b", "the address of box 'b'"}}) {
    Pair pair(KeyFolder(signer, row.worker), KeyFolder(signer, row.box), row.name);
    pair.run();
    CHECK_THAT(pair.client.failure, Contains(row.failure));
    CHECK_FALSE(pair.server.failure.empty());
  }
  auto order = KeyFolder::order("pbox://rack/operator");
  order.serves = true;
  Pair no_box(KeyFolder(signer, kWorker), KeyFolder(signer, order, signer.certificate));
  no_box.run();
  CHECK_THAT(no_box.client.failure, Contains("which is not a box"));
  // A certificate without the key usage of a server cannot be a box's, even if it names a box.
  order = KeyFolder::order("pbox://rack/box/a");
  order.serves = false;
  Pair no_server(KeyFolder(signer, kWorker), KeyFolder(signer, order, signer.certificate));
  no_server.run();
  CHECK_THAT(no_server.client.failure, Contains("a server needs the certificate of a box"));
}

TEST_CASE("a revoked certificate is refused, also with a list whose next update is overdue") {
  const auto signer = authority();
  const KeyFolder worker(signer, kWorker), box(signer, "pbox://rack/box/a");
  const auto own = tls::parse_certificates(*tls::read_pem_file(worker.path() + "/cert.pem"));
  const auto issuer = tls::parse_certificates(signer.certificate);
  const tls::Owned<X509_CRL> list(X509_CRL_new());
  X509_CRL_set_version(list.get(), X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(issuer[0].get()));
  const tls::Owned<ASN1_TIME> then(ASN1_TIME_set(nullptr, std::time(nullptr) - 60));
  X509_CRL_set1_lastUpdate(list.get(), then.get());
  X509_CRL_set1_nextUpdate(list.get(), then.get());
  X509_REVOKED* revoked = X509_REVOKED_new();
  X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(own[0].get()));
  X509_REVOKED_set_revocationDate(revoked, then.get());
  X509_CRL_add0_revoked(list.get(), revoked);
  REQUIRE(X509_CRL_sign(list.get(), tls::parse_private_key(signer.key).get(), EVP_sha256()) > 0);
  const tls::Owned<BIO> text(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509_CRL(text.get(), list.get());
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(text.get(), &bytes);
  box.write("crl.pem", std::string(bytes, static_cast<size_t>(count)));

  Pair pair(worker, box);
  pair.run();
  CHECK_THAT(pair.server.failure, Contains("it is revoked"));
  CHECK_THAT(pair.client.failure, Contains("it is revoked"));
  Pair other(KeyFolder(signer, kWorker), box);
  other.run();
  CHECK(other.is_established());
}

TEST_CASE("a box refuses peers that do not follow the rules") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a");
  const auto issued = [&](const tls::CertificateOrder& order) {
    return *tls::issue(signer, order);
  };
  auto two = KeyFolder::order("pbox://rack/viewer");
  two.uris.push_back("pbox://rack/operator");
  auto self_signed = tls::make_authority("rack", valid_for());
  struct Row {
    int version;
    tls::KeyPair keys;
    const char* failure;
  };
  for (const Row& row : std::vector<Row>{
           {TLS1_2_VERSION, issued(KeyFolder::order(kWorker)), "TLS 1.3"},
           {TLS1_3_VERSION, {}, "the peer has shown no certificate"},
           {TLS1_3_VERSION, issued(KeyFolder::order(kWorker, -60)), "it has expired"},
           {TLS1_3_VERSION, issued(two), "has 2 identities"},
           {TLS1_3_VERSION, issued(KeyFolder::order("pbox://rack/x")), "'pbox://rack/x'"},
           {TLS1_3_VERSION, self_signed, "no authority in ca.pem has signed it"}}) {
    End server{.connection = box.load()->accept()};
    StrangeClient client(row.version, row.keys);
    std::string bytes = client.answer("");
    for (int turn = 0; turn < 3 && server.failure.empty(); ++turn) {
      server.take(bytes);
      bytes = client.answer(std::exchange(server.to_peer, {}));
    }
    CHECK_THAT(server.failure, Contains(row.failure));
    CHECK_FALSE(server.connection->is_established());
  }
}

TEST_CASE("a peer that sends a damaged certificate besides its own is refused by a later check") {
  const auto signer = authority();
  const KeyFolder box(signer, "pbox://rack/box/a");
  const auto keys = *tls::issue(signer, KeyFolder::order(kWorker));
  const auto damaged = std::move(tls::parse_certificates(signer.certificate)[0]);
  REQUIRE(ASN1_STRING_set(X509_getm_notAfter(damaged.get()), "XXXXXXXXXXXXX", 13) == 1);
  REQUIRE(X509_sign(damaged.get(), tls::parse_private_key(signer.key).get(), EVP_sha256()) > 0);
  const auto credentials = box.load();
  End server{.connection = credentials->accept()};
  StrangeClient client(TLS1_3_VERSION, keys);
  client.send_also(damaged.get());
  server.take(client.answer(""));
  server.take(client.answer(std::exchange(server.to_peer, {})));
  CHECK(server.failure.empty());
  REQUIRE(server.connection->is_established());  // TLS looks only at the chain to an authority
  const std::string certificates = server.connection->peer_certificates();
  REQUIRE(certificates == keys.certificate + tls::pem_text(damaged.get()));
  const Status accepted = credentials->check_peer(certificates);
  REQUIRE_FALSE(accepted.ok());
  CHECK_THAT(accepted.error().message, Contains("damaged"));
}

TEST_CASE("bytes that are no TLS, or that somebody has changed, end the connection") {
  const auto signer = authority();
  const KeyFolder worker(signer, kWorker), box(signer, "pbox://rack/box/a");
  Pair plain(worker, box);
  plain.client.take("HTTP/1.1 400 Bad Request\r\n\r\n");
  CHECK_THAT(plain.client.failure, Contains("does not speak TLS"));
  Pair pair(worker, box);
  pair.run();
  REQUIRE(pair.is_established());
  pair.client.say("message");
  pair.client.to_peer.back() ^= 1;
  pair.run();
  CHECK_FALSE(pair.server.failure.empty());
  CHECK(pair.server.plain.empty());
}

TEST_CASE("the first bytes of a connection show whether they may be TLS") {
  using namespace std::string_view_literals;
  for (const auto bytes : {""sv, "\x16"sv, "\x16\x03"sv, "\x16\x03\x01"sv, "\x16\x03\x03\x02"sv}) {
    CHECK(tls::may_be_tls(bytes));
  }
  for (const auto bytes : {"\x15"sv, "\x10\0\0\0"sv, "\x16\x02"sv, "\x16\x03\0\0"sv, "GET"sv}) {
    CHECK_FALSE(tls::may_be_tls(bytes));
  }
}

}  // namespace pbox::test::connection_test
