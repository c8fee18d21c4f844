// Decides which peer a handshake accepts. OpenSSL verifies the peer's chain of certificates; this
// adds the rules about identities, and remembers why a peer was refused. Private to nic/tls.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/tls/openssl_types.h"

namespace pbox::tls {

// Returns the one identity that the certificate states.
Result<Identity> identity_of(const X509* certificate);

struct PeerCheck {
  std::string cluster = {};           // the peer must belong to this cluster
  bool must_be_box = false;           // the peer must be a box
  std::string box = {};               // name that the box must have; empty: any
  std::optional<Identity> peer = {};  // the peer's identity, once its certificate is accepted
  std::string failure = {};           // why the peer is refused; empty if it is not
};

// Verifies the peer of `ssl` by these rules during its handshake. `check` must outlive `ssl`.
void set_peer_check(SSL* ssl, PeerCheck* check);

// Clears OpenSSL's error that a revocation list is missing or stale; returns false if the error is
// another one. Revoked certificates stay revoked after the list's next update is due, and an
// authority without a list has revoked nothing.
bool forgive_stale_list(X509_STORE_CTX* context);

// Returns a sentence about an error of OpenSSL's verification, with a remedy.
std::string describe_verification_error(int error);

}  // namespace pbox::tls
