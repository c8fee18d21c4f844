// Certificates that are made for an authority and by it.
#include <catch2/catch.hpp>
#include <set>

#include "nic/tls/peer_check.h"
#include "nic/tls/pem.h"
#include "tests/support/key_folder.h"

namespace pbox::test {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("an authority's certificate states its cluster and can sign certificates") {
  const auto made = authority("rack-7");
  const auto facts = tls::authority_facts(made.certificate);
  REQUIRE(facts.ok());
  CHECK(facts->cluster == "rack-7");
  const auto parsed = tls::parse_certificates(made.certificate);
  REQUIRE(parsed.size() == 1);
  CHECK(facts->fingerprint == tls::fingerprint_of(parsed[0].get()));
  CHECK(facts->expires_unix_s == tls::unix_seconds_of(X509_get0_notAfter(parsed[0].get())));
  CHECK(X509_check_ca(parsed[0].get()) == 1);
  CHECK(X509_get_pathlen(parsed[0].get()) == 0);  // it signs no other authority
}

TEST_CASE("an issued certificate states its identity, its life and its purpose") {
  const auto signer = authority();
  const tls::Validity validity{.from_unix_s = 1'700'000'000, .to_unix_s = 1'900'000'000};
  const auto issued =
      tls::issue(signer, {.uris = {"pbox://rack/viewer"}, .serves = false, .validity = validity});
  REQUIRE(issued.ok());
  const auto parsed = tls::parse_certificates(issued->certificate);
  REQUIRE(parsed.size() == 1);
  X509* certificate = parsed[0].get();
  const auto identity = tls::identity_of(certificate);
  REQUIRE(identity.ok());
  CHECK(tls::to_uri(*identity) == "pbox://rack/viewer");
  CHECK(tls::unix_seconds_of(X509_get0_notBefore(certificate)) == validity.from_unix_s);
  CHECK(tls::unix_seconds_of(X509_get0_notAfter(certificate)) == validity.to_unix_s);
  CHECK(X509_check_ca(certificate) == 0);
  CHECK(X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) == 1);
  CHECK(X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) == 0);
  CHECK(X509_check_private_key(certificate, tls::parse_private_key(issued->key).get()) == 1);
}

TEST_CASE("a box's certificate states the names and addresses that other clients compare") {
  auto order = KeyFolder::order("pbox://rack/box/a");
  order.hosts = {"a", "box_1.rack.example", "10.0.0.7", "fd00::7"};
  const auto issued = tls::issue(authority(), order);
  REQUIRE(issued.ok());
  const auto parsed = tls::parse_certificates(issued->certificate);
  REQUIRE(parsed.size() == 1);
  X509* certificate = parsed[0].get();
  CHECK(tls::to_uri(*tls::identity_of(certificate)) == "pbox://rack/box/a");
  for (const std::string name : {"a", "box_1.rack.example"}) {
    CHECK(X509_check_host(certificate, name.c_str(), name.size(), 0, nullptr) == 1);
  }
  for (const char* address : {"10.0.0.7", "fd00::7"}) {
    CHECK(X509_check_ip_asc(certificate, address, 0) == 1);
  }
  CHECK(X509_check_host(certificate, "b", 1, 0, nullptr) == 0);
  CHECK(X509_check_ip_asc(certificate, "10.0.0.8", 0) == 0);
}

TEST_CASE("keys and serial numbers are new for every certificate") {
  const auto signer = authority();
  std::set<std::string> keys, fingerprints;
  for (int index = 0; index < 8; ++index) {
    const auto issued = tls::issue(signer, KeyFolder::order("pbox://rack/operator"));
    REQUIRE(issued.ok());
    keys.insert(issued->key);
    fingerprints.insert(tls::fingerprint_of(tls::parse_certificates(issued->certificate)[0].get()));
  }
  CHECK(keys.size() == 8);
  CHECK(fingerprints.size() == 8);
}

TEST_CASE("an operator's own authority may have a key of another kind") {
  const bool is_rsa = GENERATE(false, true);
  const tls::Owned<EVP_PKEY> key(is_rsa ? EVP_RSA_gen(2048)
                                        : EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  const auto certificate = std::move(tls::parse_certificates(authority().certificate)[0]);
  REQUIRE(X509_set_pubkey(certificate.get(), key.get()) == 1);
  REQUIRE(X509_sign(certificate.get(), key.get(), is_rsa ? EVP_sha256() : nullptr) > 0);
  const KeyFolder folder(pem_of(certificate.get(), key.get()), "pbox://rack/viewer");
  CHECK(tls::to_uri(folder.load()->identity()) == "pbox://rack/viewer");
}

TEST_CASE("nothing is signed with a key that is not the authority's") {
  const auto signer = authority(), other = authority();
  const auto issued = tls::issue({.certificate = signer.certificate, .key = other.key},
                                 KeyFolder::order("pbox://rack/operator"));
  REQUIRE_FALSE(issued.ok());
  CHECK_THAT(issued.error().message, Contains("private key that belongs to it"));
  CHECK_FALSE(tls::issue({.certificate = "text", .key = signer.key},
                         KeyFolder::order("pbox://rack/operator"))
                  .ok());
  CHECK_FALSE(tls::authority_facts("text").ok());
}

}  // namespace pbox::test
