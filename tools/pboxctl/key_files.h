// Folders of keys on disk: that of a cluster's authority, and those that are handed out.
#pragma once

#include <string>

#include "base/result.h"
#include "nic/tls/authority.h"

namespace pboxctl {

// Writes ca.pem and ca-key.pem. Makes the folder, and replaces keys only if `force` is set.
pbox::Status write_authority(const std::string& folder, const pbox::tls::KeyPair& authority,
                             bool force);
// Reads what write_authority() has written.
pbox::Result<pbox::tls::KeyPair> read_authority(const std::string& folder);
// Writes ca.pem, cert.pem and key.pem, in the same manner.
pbox::Status write_keys(const std::string& folder, const std::string& authority_certificate,
                        const pbox::tls::KeyPair& keys, bool force);

}  // namespace pboxctl
