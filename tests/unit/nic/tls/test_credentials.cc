// Folders of keys: what is loaded, and what is refused.
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "nic/tls/pem.h"
#include "tests/support/key_folder.h"

namespace pbox::test::credentials_test {
namespace {

using Catch::Contains;

std::string refusal(const std::string& folder) {
  const auto loaded = tls::Credentials::load(folder);
  return loaded ? "" : loaded.error().message;
}

}  // namespace

TEST_CASE("credentials state whose they are, until when, and who signed them") {
  const auto signer = authority();
  const KeyFolder folder(signer, "pbox://rack/box/a");
  const auto credentials = folder.load();
  CHECK(tls::to_uri(credentials->identity()) == "pbox://rack/box/a");
  CHECK(credentials->expires_unix_s() > std::time(nullptr));
  CHECK(credentials->authority_fingerprints() ==
        tls::fingerprint_of(tls::parse_certificates(signer.certificate)[0].get()));
}

TEST_CASE("ca.pem may hold the authority's certificate and its successor's") {
  const auto former = authority(), next = authority();
  const KeyFolder folder(next, KeyFolder::order("pbox://rack/box/a"),
                         former.certificate + next.certificate);
  CHECK(folder.load()->authority_fingerprints().size() == 64 + 1 + 64);
}

TEST_CASE("a folder without keys is refused with the missing file and the command that makes it") {
  const TemporaryFolder empty;
  CHECK_THAT(refusal(empty.path()), Contains(empty.path() + "/ca.pem") && Contains("pboxctl keys"));
}

TEST_CASE("each file that is damaged or missing is named") {
  const auto signer = authority();
  for (const char* name : {"ca.pem", "cert.pem", "key.pem"}) {
    const KeyFolder folder(signer, "pbox://rack/box/a");
    folder.write(name, "no PEM");
    CAPTURE(name);
    CHECK_THAT(refusal(folder.path()), Contains(folder.path() + "/" + name));
    remove((folder.path() + "/" + name).c_str());
    CHECK_THAT(refusal(folder.path()), Contains(folder.path() + "/" + name));
  }
}

TEST_CASE("a list of certificates that is damaged at its end is refused as a whole") {
  const auto signer = authority();
  const KeyFolder folder(signer, "pbox://rack/box/a");
  folder.write("ca.pem", signer.certificate + "-----BEGIN CERTIFICATE-----\nAAAA\n");
  CHECK_THAT(refusal(folder.path()), Contains("damaged"));
}

TEST_CASE("a private key that others may use is refused, with its mode and the remedy") {
  const KeyFolder folder(authority(), "pbox://rack/box/a");
  for (const mode_t mode : {0660, 0604, 0620, 0602, 0644, 0610}) {
    REQUIRE(chmod((folder.path() + "/key.pem").c_str(), mode) == 0);
    CHECK_THAT(refusal(folder.path()), Contains("chmod 600 " + folder.path() + "/key.pem"));
  }
  REQUIRE(chmod((folder.path() + "/key.pem").c_str(), 0400) == 0);
  CHECK(refusal(folder.path()).empty());
  // systemd and Kubernetes give root's files to a service with this mode.
  REQUIRE(chmod((folder.path() + "/key.pem").c_str(), 0440) == 0);
  CHECK(refusal(folder.path()).empty() == (geteuid() == 0));
}

TEST_CASE("a key of another certificate is refused") {
  const auto signer = authority();
  const KeyFolder folder(signer, "pbox://rack/box/a");
  folder.write("key.pem", tls::issue(signer, KeyFolder::order("pbox://rack/box/a"))->key);
  CHECK_THAT(refusal(folder.path()), Contains("does not belong to"));
}

TEST_CASE("a key that is too weak for TLS is refused") {
  const auto signer = authority();
  const KeyFolder folder(signer, "pbox://rack/box/a");
  const tls::Owned<EVP_PKEY> weak(EVP_RSA_gen(512));
  REQUIRE(weak != nullptr);
  const auto pem = tls::read_pem_file(folder.path() + "/cert.pem");
  const auto certificate = std::move(tls::parse_certificates(*pem)[0]);
  REQUIRE(X509_set_pubkey(certificate.get(), weak.get()) == 1);
  REQUIRE(X509_sign(certificate.get(), tls::parse_private_key(signer.key).get(), EVP_sha256()) > 0);
  const auto pair = pem_of(certificate.get(), weak.get());
  folder.write("cert.pem", pair.certificate);
  folder.write("key.pem", pair.key);
  CHECK_THAT(refusal(folder.path()), Contains("cert.pem cannot be used"));
}

TEST_CASE("an expired certificate is refused with the time at which it expired") {
  const auto signer = authority();
  const KeyFolder folder(signer, KeyFolder::order("pbox://rack/box/a", -60), signer.certificate);
  CHECK_THAT(refusal(folder.path()), Contains("cert.pem expired on 20") && Contains(" UTC"));
}

TEST_CASE("a certificate that is not valid yet, or of another authority, is refused") {
  const auto signer = authority(), other = authority();
  auto order = KeyFolder::order("pbox://rack/box/a", 7200);
  order.validity.from_unix_s += 7200;
  CHECK_THAT(refusal(KeyFolder(signer, order, signer.certificate).path()),
             Contains("not valid yet"));
  const KeyFolder foreign(signer, KeyFolder::order("pbox://rack/box/a"), other.certificate);
  CHECK_THAT(refusal(foreign.path()), Contains("no authority in ca.pem has signed it"));
}

TEST_CASE("a certificate must state exactly one identity, in a known form") {
  const auto signer = authority();
  auto order = KeyFolder::order("pbox://rack/box/a");
  for (const std::vector<std::string>& uris : std::vector<std::vector<std::string>>{
           {}, {"pbox://rack/box/a", "pbox://rack/operator"}, {"https://rack/box/a"}}) {
    order.uris = uris;
    CHECK_THAT(refusal(KeyFolder(signer, order, signer.certificate).path()),
               Contains("but must have exactly one"));
  }
  order.uris = {"https://rack.example/", "pbox://rack/box/a"};  // other URIs do not matter
  CHECK(refusal(KeyFolder(signer, order, signer.certificate).path()).empty());
  order.uris = {"pbox://rack/root"};
  CHECK_THAT(refusal(KeyFolder(signer, order, signer.certificate).path()),
             Contains("'pbox://rack/root'"));
}

TEST_CASE("a leaf certificate cannot act as an authority") {
  const auto signer = authority();
  const auto leaf = tls::issue(signer, KeyFolder::order("pbox://rack/box/a"));
  REQUIRE(leaf.ok());
  const KeyFolder folder(*leaf, KeyFolder::order("pbox://rack/operator"), leaf->certificate);
  CHECK_THAT(refusal(folder.path()), Contains("does not belong to an authority"));
  // It is refused even if it is sent along and the authority that signed it is trusted.
  const KeyFolder chained(*leaf, KeyFolder::order("pbox://rack/operator"), signer.certificate);
  chained.write(
      "cert.pem",
      tls::issue(*leaf, KeyFolder::order("pbox://rack/operator"))->certificate + leaf->certificate);
  CHECK_THAT(refusal(chained.path()), Contains("is not valid with"));
}

}  // namespace pbox::test::credentials_test
