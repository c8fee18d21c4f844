// Keys on disk: the folder of a cluster's authority, and folders and tokens that are handed out.
#pragma once

#include <string>

#include "base/result.h"
#include "nic/tls/authority.h"

namespace pboxctl {

// The files that an authority's folder and all folders of keys have in common.
struct Trust {
  std::string authorities;  // ca.pem
  std::string revocations;  // crl.pem; empty if nothing is revoked
};

// Writes ca.pem and ca-key.pem. Creates the folder if it is missing. Replaces existing keys only if
// `force` is set.
pbox::Status write_authority(const std::string& folder, const pbox::tls::KeyPair& authority,
                             bool force);
// Reads what write_authority() has written. While the authority is being replaced, ca.pem holds two
// certificates, and the first one belongs to the key.
pbox::Result<pbox::tls::KeyPair> read_authority(const std::string& folder);
pbox::Result<Trust> read_trust(const std::string& folder);
// Writes cert.pem, key.pem and `trust` under the same rules.
pbox::Status write_keys(const std::string& folder, const Trust& trust,
                        const pbox::tls::KeyPair& keys, bool force);
// Writes these files as a token (nic/tls/token.h) to the file `path`.
pbox::Status write_token(const std::string& path, const Trust& trust,
                         const pbox::tls::KeyPair& keys, bool force);
// Returns the certificate in a folder of keys, in a token, or in a PEM file.
pbox::Result<std::string> read_certificate(const std::string& path);
// Replaces ca.pem and crl.pem in a folder.
pbox::Status write_trust(const std::string& folder, const Trust& trust);

enum class Mode { kOwnerOnly, kReadableByAll };
// Writes a file, or replaces it whole: no crash leaves half of it.
pbox::Status replace_file(const std::string& path, const std::string& text, Mode mode);

}  // namespace pboxctl
