#include "nic/tls/revocation.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "base/check.h"
#include "nic/tls/peer_check.h"
#include "nic/tls/pem.h"
#include "nic/tls/signer.h"

namespace pbox::tls {
namespace {

constexpr int64_t kClockSkewSeconds = 300;  // hosts whose clocks are behind by less accept a list

bool is_signed_by(X509_CRL* list, X509* authority) {
  const bool is_signed = X509_CRL_verify(list, X509_get0_pubkey(authority)) == 1;
  ERR_clear_error();
  return is_signed;
}

bool is_signed_by(X509* certificate, X509* authority) {
  const bool is_signed = X509_verify(certificate, X509_get0_pubkey(authority)) == 1;
  ERR_clear_error();
  return is_signed;
}

std::string text_of(X509_CRL* list) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  PBOX_CHECK(bio != nullptr && PEM_write_bio_X509_CRL(bio.get(), list) == 1);
  return take_text(bio.get());
}

// The lists of one authority are numbered (RFC 5280, section 5.2.3).
void set_number(X509_CRL* list, X509_CRL* former) {
  const Owned<ASN1_INTEGER> before(former == nullptr
                                       ? nullptr
                                       : static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(
                                             former, NID_crl_number, nullptr, nullptr)));
  const Owned<ASN1_INTEGER> number(ASN1_INTEGER_new());
  PBOX_CHECK(number != nullptr);
  const int64_t next = (before == nullptr ? 0 : ASN1_INTEGER_get(before.get())) + 1;
  PBOX_CHECK(ASN1_INTEGER_set_int64(number.get(), next) == 1);
  PBOX_CHECK(X509_CRL_add1_ext_i2d(list, NID_crl_number, number.get(), 0, 0) == 1);
}

// An authority and its successor have the same name, so the list must say whose key has signed it.
void set_authority(X509_CRL* list, X509* authority) {
  PBOX_CHECK(X509_CRL_set_issuer_name(list, X509_get_subject_name(authority)) == 1);
  if (X509_get0_subject_key_id(authority) == nullptr) return;  // not made by pboxctl
  X509V3_CTX context;
  X509V3_set_ctx(&context, authority, nullptr, nullptr, list, 0);
  const Owned<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  PBOX_CHECK(extension != nullptr && X509_CRL_add_ext(list, extension.get(), -1) == 1);
}

void set_times(X509_CRL* list, X509* authority, int64_t now_unix_s) {
  const Owned<ASN1_TIME> now(ASN1_TIME_set(nullptr, now_unix_s - kClockSkewSeconds));
  PBOX_CHECK(now != nullptr && X509_CRL_set1_lastUpdate(list, now.get()) == 1);
  PBOX_CHECK(X509_CRL_set1_nextUpdate(list, X509_get0_notAfter(authority)) == 1);
}

// Adds a copy of the entry. The caller still owns `entry`.
void add_entry(X509_CRL* list, const X509_REVOKED* entry) {
  X509_REVOKED* copy = X509_REVOKED_dup(entry);
  PBOX_CHECK(copy != nullptr && X509_CRL_add0_revoked(list, copy) == 1);
}

// Returns the successor of the list `former`, which may be null, with one more certificate.
Result<std::string> next_list(const Signer& signer, X509_CRL* former, X509* revoked,
                              int64_t now_unix_s) {
  X509* authority = signer.certificate.get();
  const Owned<X509_CRL> list(X509_CRL_new());
  PBOX_CHECK(list != nullptr && X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1);
  set_authority(list.get(), authority);
  set_times(list.get(), authority, now_unix_s);
  const STACK_OF(X509_REVOKED)* entries =
      former == nullptr ? nullptr : X509_CRL_get_REVOKED(former);
  for (int index = 0; index < sk_X509_REVOKED_num(entries); ++index) {
    add_entry(list.get(), sk_X509_REVOKED_value(entries, index));
  }
  const Owned<X509_REVOKED> entry(X509_REVOKED_new());
  const Owned<ASN1_TIME> now(ASN1_TIME_set(nullptr, now_unix_s));
  PBOX_CHECK(entry != nullptr && now != nullptr);
  PBOX_CHECK(X509_REVOKED_set_serialNumber(entry.get(), X509_get_serialNumber(revoked)) == 1);
  PBOX_CHECK(X509_REVOKED_set_revocationDate(entry.get(), now.get()) == 1);
  add_entry(list.get(), entry.get());
  PBOX_CHECK(X509_CRL_sort(list.get()) == 1);
  set_number(list.get(), former);
  if (X509_CRL_sign(list.get(), signer.key.get(), signer.digest()) <= 0) {
    return invalid("the authority's private key cannot sign: " + take_openssl_error());
  }
  return text_of(list.get());
}

Result<std::vector<Owned<X509_CRL>>> parse_lists(const std::string& lists) {
  auto parsed = parse_revocation_lists(lists);
  if (parsed.empty() && !lists.empty()) {
    return invalid("crl.pem holds no revocation list, or a damaged one; replace or remove it");
  }
  return parsed;
}

}  // namespace

Result<Revocation> revoke(std::span<const KeyPair> authorities, const std::string& lists,
                          const std::string& certificate, int64_t now_unix_s) {
  const auto certificates = parse_certificates(certificate);
  if (certificates.empty()) return invalid("the file holds no certificate, or a damaged one");
  X509* revoked = certificates[0].get();
  const auto identity = identity_of(revoked);
  if (!identity) return identity.error();
  const auto parsed = parse_lists(lists);
  if (!parsed) return parsed.error();
  for (const KeyPair& authority : authorities) {
    const auto signer = parse_signer(authority);
    if (!signer) return invalid("the authority's files " + signer.error().message);
    if (!is_signed_by(revoked, signer->certificate.get())) continue;
    Revocation revocation{.identity = to_uri(*identity)};
    X509_CRL* former = nullptr;
    for (const auto& list : *parsed) {
      if (!is_signed_by(list.get(), signer->certificate.get())) {
        revocation.lists += text_of(list.get());
        continue;
      }
      former = list.get();
      X509_REVOKED* entry = nullptr;
      if (X509_CRL_get0_by_cert(former, &entry, revoked) == 0) continue;
      return Revocation{.lists = lists, .identity = to_uri(*identity), .was_revoked = true};
    }
    const auto next = next_list(*signer, former, revoked, now_unix_s);
    if (!next) return next.error();
    revocation.lists += *next;
    return revocation;
  }
  return invalid("another authority has signed the certificate of " + to_uri(*identity) +
                 "; name the folder of that authority");
}

Result<std::string> lists_of(const std::string& certificates, const std::string& lists) {
  const auto parsed = parse_lists(lists);
  if (!parsed) return parsed.error();
  std::string kept;
  const auto authorities = parse_certificates(certificates);
  for (const auto& list : *parsed) {
    for (const auto& authority : authorities) {
      if (!is_signed_by(list.get(), authority.get())) continue;
      kept += text_of(list.get());
      break;
    }
  }
  return kept;
}

}  // namespace pbox::tls
