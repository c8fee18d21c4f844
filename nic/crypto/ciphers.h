// The two libraries behind Cipher.
#pragma once

#include "nic/crypto/cipher.h"

namespace pbox::crypto {

std::unique_ptr<Cipher> make_openssl_cipher(Suite suite);

// In builds for amd64 only. False if the CPU has no AES instructions. Any thread.
bool has_ipsec_mb();
// Only if has_ipsec_mb().
Result<std::unique_ptr<Cipher>> make_ipsec_mb_cipher(Suite suite, SecretPages& pages);

}  // namespace pbox::crypto
