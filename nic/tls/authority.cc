#include "nic/tls/authority.h"

#include <arpa/inet.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>

#include "base/check.h"
#include "nic/tls/openssl_types.h"
#include "nic/tls/peer_check.h"
#include "nic/tls/pem.h"
#include "nic/tls/signer.h"

namespace pbox::tls {
namespace {

constexpr int kSerialBits = 127;  // positive, and below the 20 bytes that RFC 5280 allows

// Makes a key for ECDSA with P-256. A box signs once for each handshake that a stranger begins, and
// this signature is the cheapest of those that every TLS library and FIPS mode has.
Owned<EVP_PKEY> make_key() {
  Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  PBOX_CHECK(key != nullptr);
  return key;
}

bool is_ip_literal(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> ignored;
  return inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
}

KeyPair to_pem(X509* certificate, EVP_PKEY* key) {
  // The bytes of a secure memory buffer are erased when it is freed.
  const Owned<BIO> bio(BIO_new(BIO_s_secmem()));
  PBOX_CHECK(bio != nullptr &&
             PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return {.certificate = pem_text(certificate), .key = take_text(bio.get())};
}

void add_name(X509_NAME* name, const char* field, const std::string& value) {
  PBOX_CHECK(X509_NAME_add_entry_by_txt(name, field, MBSTRING_ASC,
                                        reinterpret_cast<const unsigned char*>(value.data()),
                                        static_cast<int>(value.size()), -1, 0) == 1);
}

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  PBOX_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

// Returns a certificate without names, extensions and signature.
Owned<X509> begin_certificate(EVP_PKEY* key, const Validity& validity) {
  PBOX_CHECK(validity.from_unix_s < validity.to_unix_s);
  Owned<X509> certificate(X509_new());
  PBOX_CHECK(certificate != nullptr);
  struct FreeNumber {
    void operator()(BIGNUM* number) const { BN_free(number); }
  };
  const std::unique_ptr<BIGNUM, FreeNumber> serial(BN_new());
  PBOX_CHECK(BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1);
  PBOX_CHECK(BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr);
  PBOX_CHECK(X509_set_version(certificate.get(), X509_VERSION_3) == 1);
  PBOX_CHECK(ASN1_TIME_set(X509_getm_notBefore(certificate.get()), validity.from_unix_s) !=
             nullptr);
  PBOX_CHECK(ASN1_TIME_set(X509_getm_notAfter(certificate.get()), validity.to_unix_s) != nullptr);
  PBOX_CHECK(X509_set_pubkey(certificate.get(), key) == 1);
  return certificate;
}

// Returns the names and IP addresses among the alternative names.
std::vector<std::string> hosts_of(const X509* certificate) {
  std::vector<std::string> hosts;
  const auto names = alternative_names(certificate);
  for (int index = 0; index < sk_GENERAL_NAME_num(names.get()); ++index) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), index);
    if (name->type == GEN_DNS) hosts.push_back(bytes_of(name->d.dNSName));
    if (name->type != GEN_IPADD) continue;
    const std::string address = bytes_of(name->d.iPAddress);
    const bool is_ipv6 = address.size() == sizeof(in6_addr);
    if (!is_ipv6 && address.size() != sizeof(in_addr)) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    inet_ntop(is_ipv6 ? AF_INET6 : AF_INET, address.data(), text.data(), text.size());
    hosts.emplace_back(text.data());
  }
  return hosts;
}

}  // namespace

KeyPair make_authority(const std::string& cluster, const Validity& validity) {
  PBOX_CHECK(is_identity_name(cluster));
  const auto key = make_key();
  const auto certificate = begin_certificate(key.get(), validity);
  X509* authority = certificate.get();
  X509_NAME* name = X509_get_subject_name(authority);
  add_name(name, "O", cluster);
  add_name(name, "CN", "PBox authority");
  PBOX_CHECK(X509_set_issuer_name(authority, name) == 1);
  add_extension(authority, authority, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(authority, authority, NID_key_usage, "critical,keyCertSign,cRLSign");
  add_extension(authority, authority, NID_subject_key_identifier, "hash");
  PBOX_CHECK(X509_sign(authority, key.get(), EVP_sha256()) > 0);
  return to_pem(authority, key.get());
}

Result<AuthorityFacts> authority_facts(const std::string& certificate) {
  const auto certificates = parse_certificates(certificate);
  if (certificates.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "has no certificate, or a damaged one; make it with `pboxctl keys init`"};
  }
  const X509* authority = certificates[0].get();
  const X509_NAME* name = X509_get_subject_name(authority);
  const int index = X509_NAME_get_index_by_NID(name, NID_organizationName, -1);
  AuthorityFacts facts{.cluster = {},
                       .expires_unix_s = unix_seconds_of(X509_get0_notAfter(authority)),
                       .fingerprint = fingerprint_of(authority)};
  if (index >= 0) {
    facts.cluster = bytes_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, index)));
  }
  if (!is_identity_name(facts.cluster)) {
    return Error{ErrorCode::kInvalidArgument,
                 "names no cluster as its organisation; `pboxctl keys init` makes one that does"};
  }
  return facts;
}

Result<CertificateFacts> certificate_facts(const std::string& certificate) {
  const auto certificates = parse_certificates(certificate);
  if (certificates.empty()) {
    return Error{ErrorCode::kInvalidArgument,
                 "has no certificate, or a damaged one; make it with `pboxctl keys`"};
  }
  const X509* own = certificates[0].get();
  auto identity = identity_of(own);
  if (!identity)
    return Error{identity.error().code, "states no valid identity: " + identity.error().message};
  return CertificateFacts{.identity = std::move(*identity),
                          .hosts = hosts_of(own),
                          .validity = {.from_unix_s = unix_seconds_of(X509_get0_notBefore(own)),
                                       .to_unix_s = unix_seconds_of(X509_get0_notAfter(own))}};
}

bool owns_key(const std::string& certificate, const std::string& key) {
  return parse_signer({.certificate = certificate, .key = key}).ok();
}

bool is_signed_by(const std::string& certificate, const std::string& authority) {
  const auto own = parse_certificates(certificate), by = parse_certificates(authority);
  if (own.empty() || by.empty()) return false;
  const bool is_signed = X509_verify(own[0].get(), X509_get0_pubkey(by[0].get())) == 1;
  ERR_clear_error();
  return is_signed;
}

Result<KeyPair> issue(const KeyPair& authority, const CertificateOrder& order) {
  const auto signer = parse_signer(authority);
  if (!signer) return signer.error();
  X509* issuer = signer->certificate.get();
  const auto key = make_key();
  const auto certificate = begin_certificate(key.get(), order.validity);
  X509* own = certificate.get();
  add_name(X509_get_subject_name(own), "CN", order.serves ? "PBox box" : "PBox client");
  PBOX_CHECK(X509_set_issuer_name(own, X509_get_subject_name(issuer)) == 1);
  std::string names;
  for (const std::string& uri : order.uris) names += (names.empty() ? "URI:" : ",URI:") + uri;
  for (const std::string& host : order.hosts) {
    if (!names.empty()) names += ',';
    names += is_ip_literal(host) ? "IP:" : "DNS:";
    names += host;
  }
  if (!names.empty()) add_extension(own, issuer, NID_subject_alt_name, names);
  add_extension(own, issuer, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(own, issuer, NID_key_usage, "critical,digitalSignature");
  add_extension(own, issuer, NID_ext_key_usage,
                order.serves ? "serverAuth,clientAuth" : "clientAuth");
  add_extension(own, issuer, NID_subject_key_identifier, "hash");
  add_extension(own, issuer, NID_authority_key_identifier, "keyid");
  if (X509_sign(own, signer->key.get(), signer->digest()) <= 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "hold a private key that cannot sign: " + take_openssl_error()};
  }
  return to_pem(own, key.get());
}

}  // namespace pbox::tls
