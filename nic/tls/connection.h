// One end of a TLS connection, without its socket: bytes from the peer go in, and bytes for the
// peer come out. So box and worker can share it although they wait in different ways, and tests
// need no network. Only TLS 1.3 is spoken, and both sides show a certificate.
//
// This header needs no OpenSSL, because libpbox includes it and makes connections through
// libpbox_tls.so.1.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "nic/tls/identity.h"

namespace pbox::tls {

inline constexpr size_t kExportedSecretBytes = 48;

// One thread at a time.
class Connection {
 public:
  virtual ~Connection() = default;

  // Takes bytes that have arrived. Appends to `plain` what they decrypt to, and to `to_peer` what
  // must be sent. Does so even on an error: an alert then tells the peer why. A client begins with
  // a call without bytes. After an error the connection can only be closed. Errors complete the
  // sentence "TLS with PEER: ...".
  virtual Status receive(std::string_view bytes, std::string& plain, std::string& to_peer) = 0;
  // Encrypts a message and appends it to `to_peer`. Requires is_established().
  virtual Status send(std::string_view plain, std::string& to_peer) = 0;

  // Returns whether the peer has proved its identity. A client cannot know yet whether the box
  // accepts the client's own identity: if it does not, a later receive() fails.
  virtual bool is_established() const = 0;
  // Returns the peer's identity. Requires is_established().
  virtual const Identity& peer() const = 0;
  // Returns the certificates that the peer has shown, its own first, in PEM. Requires
  // is_established().
  virtual std::string peer_certificates() const = 0;
  // Derives a secret that only the two ends of this connection know, from its handshake and
  // `context` (RFC 8446, section 7.5, with the label "EXPORTER-pbox-data"). Requires
  // is_established().
  virtual void export_secret(std::span<const std::byte> context,
                             std::span<std::byte, kExportedSecretBytes> to) const = 0;
};

// Makes client connections with the credentials of one folder. Any thread.
class Client {
 public:
  virtual ~Client() = default;

  // Returns a connection to a box. `box`: the name that the peer must have; empty: any box of the
  // cluster.
  virtual std::unique_ptr<Connection> connect(const std::string& box) const = 0;
};

}  // namespace pbox::tls
