#include "nic/tls/signer.h"

#include <openssl/err.h>

#include "nic/tls/pem.h"

namespace pbox::tls {

const EVP_MD* Signer::digest() const {
  const bool hashes = EVP_PKEY_is_a(key.get(), "ED25519") || EVP_PKEY_is_a(key.get(), "ED448");
  return hashes ? nullptr : EVP_sha256();
}

Result<Signer> parse_signer(const KeyPair& authority) {
  auto certificates = parse_certificates(authority.certificate);
  auto key = parse_private_key(authority.key);
  if (certificates.empty() || key == nullptr ||
      X509_check_private_key(certificates[0].get(), key.get()) != 1) {
    ERR_clear_error();
    return Error{ErrorCode::kInvalidArgument,
                 "do not hold a certificate and the private key that belongs to it"};
  }
  return Signer{.certificate = std::move(certificates[0]), .key = std::move(key)};
}

}  // namespace pbox::tls
