// AES-256 in GCM as NIST SP 800-38D defines it, bit by bit and slow. Tests compare the product's
// ciphers with it. It shares with them only the AES of a single block.
#pragma once

#include <string>

namespace pbox::test {

struct Sealed {
  std::string text;  // the ciphertext
  std::string tag;   // 16 bytes
};

// `key` has 32 bytes, `nonce` 12.
Sealed gcm_reference(const std::string& key, const std::string& nonce, const std::string& aad,
                     const std::string& plain);

}  // namespace pbox::test
