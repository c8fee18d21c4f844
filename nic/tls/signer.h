// An authority's certificate and private key, ready to sign. Private to nic/tls.
#pragma once

#include "base/result.h"
#include "nic/tls/authority.h"
#include "nic/tls/openssl_types.h"

namespace pbox::tls {

struct Signer {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;

  // Returns null for keys that hash by themselves, such as Ed25519.
  const EVP_MD* digest() const;
};

// Errors complete the sentence "the authority's files ...".
Result<Signer> parse_signer(const KeyPair& authority);

}  // namespace pbox::tls
