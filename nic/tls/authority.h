// Makes keys and certificates: those of a cluster's authority, and those that it signs. Set-up
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/tls/identity.h"

namespace pbox::tls {

struct Validity {
  int64_t from_unix_s = 0;
  int64_t to_unix_s = 0;
};

// A certificate and its private key, in PEM.
struct KeyPair {
  std::string certificate;
  std::string key;
};

// Makes an authority for a cluster. It may sign certificates, but not those of further authorities.
KeyPair make_authority(const std::string& cluster, const Validity& validity);

// Facts that an authority's certificate states.
struct AuthorityFacts {
  std::string cluster;
  int64_t expires_unix_s = 0;
  std::string fingerprint;  // SHA-256 of the certificate, in hexadecimal
};
// Errors complete the sentence "FILE ...".
Result<AuthorityFacts> authority_facts(const std::string& certificate);

// A certificate to be signed. `uris`: the identities that it states; peers accept exactly one.
struct CertificateOrder {
  std::vector<std::string> uris;
  // Names and IP addresses by which HTTP clients, which do not look at identities, know the box.
  std::vector<std::string> hosts = {};
  bool serves = false;  // for a box, which accepts connections
  Validity validity;
};

// Facts that a certificate for a box, a worker or a person states.
struct CertificateFacts {
  Identity identity;
  std::vector<std::string> hosts;  // as CertificateOrder::hosts
  Validity validity;
};
// Errors complete the sentence "FILE ...".
Result<CertificateFacts> certificate_facts(const std::string& certificate);

// Returns whether the private key belongs to the first certificate.
bool owns_key(const std::string& certificate, const std::string& key);
// Returns whether the authority's key has signed the certificate; each is the first of its text.
bool is_signed_by(const std::string& certificate, const std::string& authority);

// Makes a key, and a certificate that the authority signs. Errors complete the sentence
// "the authority's files ...".
Result<KeyPair> issue(const KeyPair& authority, const CertificateOrder& order);

}  // namespace pbox::tls
