// Lists of certificates that an authority has revoked, as crl.pem holds them. Set-up thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "nic/tls/authority.h"

namespace pbox::tls {

struct Revocation {
  std::string lists = {};     // the new crl.pem
  std::string identity = {};  // URI of the revoked certificate
  bool was_revoked = false;   // it was revoked already, and `lists` has not changed
};

// Revokes a certificate. The authority that has signed it, one of `authorities`, signs its next
// list. `lists`: crl.pem so far; empty if there is none. `certificate`: cert.pem, of which the
// first certificate counts. Errors are sentences.
Result<Revocation> revoke(std::span<const KeyPair> authorities, const std::string& lists,
                          const std::string& certificate, int64_t now_unix_s);

// Returns the lists that one of the authorities in `certificates` has signed.
Result<std::string> lists_of(const std::string& certificates, const std::string& lists);

}  // namespace pbox::tls
