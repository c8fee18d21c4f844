// Lists of revoked certificates: made, extended, and followed by the folders that have them.
#include <catch2/catch.hpp>
#include <ctime>

#include "nic/tls/openssl_types.h"
#include "nic/tls/pem.h"
#include "nic/tls/revocation.h"
#include "tests/support/key_folder.h"

namespace pbox::test::revocation_test {
namespace {

using Catch::Contains;

constexpr char kWorker[] = "pbox://rack/tenant/acme/job/*/rank/*";

tls::KeyPair worker_of(const tls::KeyPair& signer) {
  return *tls::issue(signer, KeyFolder::order(kWorker));
}

tls::Revocation revoke(const std::vector<tls::KeyPair>& authorities, const std::string& lists,
                       const tls::KeyPair& keys) {
  const auto revocation = tls::revoke(authorities, lists, keys.certificate, std::time(nullptr));
  REQUIRE(revocation.ok());
  return *revocation;
}

// Returns the keys with a certificate that `signer` has signed and that may sign others, those of
// authorities too. `signer` may be the keys themselves.
tls::KeyPair signing(const tls::KeyPair& keys, const tls::KeyPair& signer) {
  const auto parsed = tls::parse_certificates(keys.certificate);
  X509* certificate = parsed[0].get();
  for (const auto& [kind, value] : {std::pair(NID_basic_constraints, "critical,CA:TRUE"),
                                    std::pair(NID_key_usage, "critical,keyCertSign,cRLSign")}) {
    const tls::Owned<X509_EXTENSION> former(
        X509_delete_ext(certificate, X509_get_ext_by_NID(certificate, kind, -1)));
    const tls::Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value));
    REQUIRE(X509_add_ext(certificate, extension.get(), -1) == 1);
  }
  REQUIRE(X509_sign(certificate, tls::parse_private_key(signer.key).get(), EVP_sha256()) > 0);
  return {.certificate = tls::pem_text(certificate), .key = keys.key};
}

// Returns why a box with these files ends a live connection of `worker`; empty if it keeps it.
std::string refusal(const tls::KeyPair& box_signer, const std::string& trusted,
                    const std::string& lists, const tls::KeyPair& worker) {
  const KeyFolder box(box_signer, KeyFolder::order("pbox://rack/box/a"), trusted);
  if (!lists.empty()) box.write("crl.pem", lists);
  const Status accepted = box.load()->check_peer(worker.certificate);
  return accepted ? "" : accepted.error().message;
}

}  // namespace

TEST_CASE("a revoked certificate is refused, and others of the authority are not") {
  const auto signer = authority();
  const auto stolen = worker_of(signer), lost = worker_of(signer), other = worker_of(signer);
  const auto first = revoke({signer}, "", stolen);
  CHECK(first.identity == kWorker);
  CHECK_FALSE(first.was_revoked);
  const auto second = revoke({signer}, first.lists, lost);
  CHECK_FALSE(second.was_revoked);
  CHECK(tls::parse_revocation_lists(second.lists).size() == 1);
  const auto check = [&](const tls::KeyPair& worker) {
    return refusal(signer, signer.certificate, second.lists, worker);
  };
  CHECK_THAT(check(stolen), Contains("it is revoked"));
  CHECK_THAT(check(lost), Contains("it is revoked"));
  CHECK(check(other).empty());
}

TEST_CASE("a certificate between the authority and the holder's can be revoked too") {
  const auto self_signed = authority();
  const auto root = signing(self_signed, self_signed);
  const auto between = signing(*tls::issue(root, KeyFolder::order("pbox://rack/operator")), root);
  auto worker = worker_of(between);
  worker.certificate += between.certificate;
  CHECK(refusal(root, root.certificate, "", worker).empty());
  const auto other = revoke({root}, "", worker_of(root));
  CHECK(refusal(root, root.certificate, other.lists, worker).empty());
  const auto revoked = revoke({root}, other.lists, between);
  CHECK_THAT(refusal(root, root.certificate, revoked.lists, worker), Contains("it is revoked"));
  CHECK(refusal(root, root.certificate, revoked.lists, worker_of(root)).empty());
}

TEST_CASE("a certificate is revoked once") {
  const auto signer = authority();
  const auto stolen = worker_of(signer);
  const auto first = revoke({signer}, "", stolen);
  const auto again = revoke({signer}, first.lists, stolen);
  CHECK(again.was_revoked);
  CHECK(again.lists == first.lists);
}

TEST_CASE("an authority and its successor have the same name, and each a list of its own") {
  const auto former = authority(), next = authority();
  const auto old_worker = worker_of(former), new_worker = worker_of(next);
  const auto old_other = worker_of(former), new_other = worker_of(next);
  const std::string both = former.certificate + next.certificate;
  const auto first = revoke({next, former}, "", old_worker);
  const auto check = [&](const std::string& lists, const tls::KeyPair& worker) {
    return refusal(next, both, lists, worker);
  };
  CHECK_THAT(check(first.lists, old_worker), Contains("it is revoked"));
  CHECK(check(first.lists, new_worker).empty());
  CHECK(check(first.lists, old_other).empty());
  const auto second = revoke({next, former}, first.lists, new_worker);
  CHECK(tls::parse_revocation_lists(second.lists).size() == 2);
  for (const auto& revoked : {old_worker, new_worker}) {
    CHECK_THAT(check(second.lists, revoked), Contains("it is revoked"));
  }
  for (const auto& valid : {old_other, new_other}) CHECK(check(second.lists, valid).empty());
  const auto kept = tls::lists_of(next.certificate, second.lists);
  REQUIRE(kept.ok());
  CHECK(tls::parse_revocation_lists(*kept).size() == 1);
  CHECK_THAT(refusal(next, next.certificate, *kept, new_worker), Contains("it is revoked"));
}

TEST_CASE("an authority revokes only certificates that it has signed, and damage is named") {
  const auto signer = authority(), other = authority();
  const auto keys = worker_of(signer);
  const auto failure = [&](const tls::KeyPair& by, const std::string& lists,
                           const std::string& certificate) {
    const std::vector<tls::KeyPair> authorities = {by};
    const auto revocation = tls::revoke(authorities, lists, certificate, std::time(nullptr));
    return revocation ? "" : revocation.error().message;
  };
  CHECK_THAT(failure(other, "", keys.certificate),
             Contains("another authority") && Contains(kWorker));
  CHECK_THAT(failure(signer, "no list", keys.certificate), Contains("crl.pem"));
  CHECK_THAT(failure(signer, "", "no certificate"), Contains("no certificate"));
}

TEST_CASE("a live connection outlasts the expiry of its certificate, not the authority's leaving") {
  const auto former = authority(), next = authority();
  const auto expired = *tls::issue(former, KeyFolder::order(kWorker, -60));
  CHECK(refusal(next, former.certificate + next.certificate, "", expired).empty());
  CHECK_THAT(refusal(next, next.certificate, "", expired),
             Contains("no authority in ca.pem has signed it"));
}

}  // namespace pbox::test::revocation_test
