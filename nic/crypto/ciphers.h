// Makes ciphers with each of the two libraries.
#pragma once

#include "nic/crypto/cipher.h"

namespace pbox::crypto {

std::unique_ptr<Cipher> make_openssl_cipher(Suite suite);

// The following functions exist only in builds for amd64.

// Returns false if the CPU has no AES instructions. Any thread may call it.
bool has_ipsec_mb();
// May be called only if has_ipsec_mb().
Result<std::unique_ptr<Cipher>> make_ipsec_mb_cipher(Suite suite, SecretPages& pages);

}  // namespace pbox::crypto
