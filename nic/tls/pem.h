// Certificates, revocation lists and private keys in PEM files. Set-up thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/tls/openssl_types.h"

namespace pbox::tls {

// Reads a file. Errors name it.
Result<std::string> read_pem_file(const std::string& path);
// Reads a file, but refuses one that anybody except its owner may read or write. If root owns it,
// its group may read it.
Result<std::string> read_private_file(const std::string& path);

// Return the objects in the text, in order; none if one cannot be parsed.
std::vector<Owned<X509>> parse_certificates(const std::string& pem);
std::vector<Owned<X509_CRL>> parse_revocation_lists(const std::string& pem);
// Returns null if the text holds no private key.
Owned<EVP_PKEY> parse_private_key(const std::string& pem);

// Returns what was written to a buffer in memory.
std::string take_text(BIO* bio);
// Returns a certificate as a PEM file holds it.
std::string pem_text(const X509* certificate);

// Returns seconds since 1970.
int64_t unix_seconds_of(const ASN1_TIME* time);
// Returns the SHA-256 of the certificate, in hexadecimal.
std::string fingerprint_of(const X509* certificate);

}  // namespace pbox::tls
