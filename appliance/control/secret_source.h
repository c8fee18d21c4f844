// Secrets that both ends of a control connection can derive from its TLS handshake, and nobody
// else. The keys of data packets come from them. Used on the control thread.
#pragma once

#include <cstddef>
#include <span>

#include "appliance/control/roster.h"
#include "nic/tls/connection.h"

namespace pbox::control {

class SecretSource {
 public:
  virtual ~SecretSource() = default;
  // Sets `to` to the secret for `context`, as tls::Connection::export_secret() does at either end.
  // Returns false, and leaves `to` as it is, if the connection is closed or has no TLS.
  virtual bool export_secret(ConnectionId connection, std::span<const std::byte> context,
                             std::span<std::byte, tls::kExportedSecretBytes> to) const = 0;
};

}  // namespace pbox::control
