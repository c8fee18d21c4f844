// Owners of OpenSSL's objects, readers of certificates, and the reason of the last error. Private
// to nic/tls.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace pbox::tls {

struct Free {
  void operator()(ASN1_STRING* text) const { ASN1_STRING_free(text); }  // numbers and times too
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_CRL* list) const { X509_CRL_free(list); }
  void operator()(X509_REVOKED* entry) const { X509_REVOKED_free(entry); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;

// Returns the bytes of a text or an address in a certificate.
std::string bytes_of(const ASN1_STRING* text);
// Returns the certificate's alternative names; empty if it has none.
Owned<GENERAL_NAMES> alternative_names(const X509* certificate);

// Returns OpenSSL's reason for the newest error of this thread, and forgets all its errors.
std::string take_openssl_error();

}  // namespace pbox::tls
