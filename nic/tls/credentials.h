// Keys, as `pboxctl keys` makes them, and the connections that they serve. A folder has these
// files, and a token (token.h) has the same files in one text:
//
//   ca.pem    certificates of the cluster's authority; several while it is being replaced
//   cert.pem  the holder's certificate, then any between it and the authority
//   key.pem   its private key; readable by its owner only, or, if root owns it, also by its group
//   crl.pem   optional: certificates that the authority has revoked
//
// A peer must present a certificate that one of the authorities has signed, that is valid now, that
// is not revoked, and that states one identity of this end's cluster. No certificate between it and
// the authority may be revoked either.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "nic/tls/connection.h"
#include "nic/tls/identity.h"
#include "nic/tls/openssl_types.h"
#include "nic/tls/token.h"

namespace pbox::tls {

// Immutable; any thread. Connections keep what they need of it.
class Credentials : public Client {
 public:
  // `path` is a folder or a token. Errors name the file, what is wrong with it, and the remedy.
  static Result<std::unique_ptr<const Credentials>> load(const std::string& path);

  const Identity& identity() const { return identity_; }
  // Returns when this end's certificate expires, in seconds since 1970.
  int64_t expires_unix_s() const { return expires_unix_s_; }
  // Returns the SHA-256 of each certificate in ca.pem, in hexadecimal, joined by spaces.
  const std::string& authority_fingerprints() const { return authority_fingerprints_; }

  // Returns an error if a connection with this peer must not go on: its certificate is revoked, no
  // authority in ca.pem has signed it, or the peer has sent a damaged certificate besides its own.
  // A certificate that has expired since the handshake is no error. `certificates`: as
  // Connection::peer_certificates() returns them.
  Status check_peer(const std::string& certificates) const;

  std::unique_ptr<Connection> connect(const std::string& box) const override;
  // Returns the box's end of a connection that a client begins.
  std::unique_ptr<Connection> accept() const;

 private:
  Credentials() = default;
  Status read_authorities(const KeyFiles& files);
  Status read_revocations(const KeyFiles& files);
  Status read_certificate(const KeyFiles& files);
  Status check_certificate(const KeyFiles& files, X509* certificate, STACK_OF(X509) * chain);
  void make_context();

  std::string certificate_name_;  // file or token of this end's certificate, for errors
  Identity identity_;
  int64_t expires_unix_s_ = 0;
  std::string authority_fingerprints_;
  Owned<X509_STORE> authorities_;
  Owned<SSL_CTX> context_;
};

// Returns whether the bytes, the first of a connection, may begin a TLS handshake. Three bytes
// decide; with fewer it returns true as long as they fit.
bool may_be_tls(std::string_view first_bytes);

// Returns a time as "2026-11-25 09:30:00 UTC".
std::string utc_text(int64_t unix_s);

}  // namespace pbox::tls
