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

// Makes an authority for a cluster: it signs certificates, but none of other authorities.
KeyPair make_authority(const std::string& cluster, const Validity& validity);

// Returns the cluster of an authority's certificate. Errors complete the sentence "FILE ...".
Result<std::string> cluster_of(const std::string& authority_certificate);

// A certificate to be signed. `uris`: the identities that it states; peers accept exactly one.
struct CertificateOrder {
  std::vector<std::string> uris;
  bool serves = false;  // a box's: it may stand at the end that accepts connections
  Validity validity;
};

// Makes a key, and a certificate that the authority signs. Errors complete the sentence
// "the authority's files ...".
Result<KeyPair> issue(const KeyPair& authority, const CertificateOrder& order);

}  // namespace pbox::tls
