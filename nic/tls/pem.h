// Certificates, revocation lists and private keys in PEM files. Set-up thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/tls/openssl_types.h"

namespace pbox::tls {

// Errors name the file.
Result<std::string> read_pem_file(const std::string& path);
// Refuses a file that anybody but its owner may read or write. If root owns it, its group may read.
Result<std::string> read_private_file(const std::string& path);

// The certificates in the text, in order. Empty if there is none, or if one cannot be parsed.
std::vector<Owned<X509>> parse_certificates(const std::string& pem);
std::vector<Owned<X509_CRL>> parse_revocation_lists(const std::string& pem);
// Null if the text holds no private key.
Owned<EVP_PKEY> parse_private_key(const std::string& pem);

// Returns what was written to a buffer in memory.
std::string take_text(BIO* bio);
// A certificate as a PEM file holds it.
std::string pem_text(const X509* certificate);

// Seconds since 1970.
int64_t unix_seconds_of(const ASN1_TIME* time);
// SHA-256 of the certificate, in hexadecimal.
std::string fingerprint_of(const X509* certificate);

}  // namespace pbox::tls
