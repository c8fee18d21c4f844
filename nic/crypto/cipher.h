// AES-256 in GCM (NIST SP 800-38D), or in GMAC, its authentication alone, for packets. The nonce is
// the key's IV xor the packet number.
//
// The bytes on the wire do not depend on the library that computes them: Intel's ipsec-mb on amd64,
// OpenSSL elsewhere.
#pragma once

#include <memory>

#include "nic/crypto/keys.h"
#include "nic/seal/packet_cipher.h"

namespace pbox::crypto {

class Cipher : public seal::PacketCipher {
 public:
  // Replaces the keys. Until the first call they are zero, and the cipher must not be used.
  virtual void set_keys(const Keys& keys) = 0;

 protected:
  // kIvBytes bytes, and zeros behind them. One store writes all: libraries load a nonce in wide
  // words, which would stall on narrow stores.
  struct alignas(16) Nonce {
    std::array<std::byte, 16> bytes{};
  };
  static Nonce pad(const std::array<std::byte, kIvBytes>& iv);
  static Nonce nonce_of(const Nonce& iv, const wire::HeaderWords& header);
};

// kFastest: ipsec-mb where the CPU is amd64 and has AES instructions, otherwise OpenSSL.
enum class Library { kFastest, kOpenSsl };

// `pages` holds the expanded keys and outlives the cipher; with OpenSSL they are in its own memory.
// One thread at a time uses `pages`, also when the cipher is destroyed. kResourceExhausted: no
// memory for the keys.
Result<std::unique_ptr<Cipher>> make_cipher(Suite suite, SecretPages& pages,
                                            Library library = Library::kFastest);

// Returns the library that kFastest stands for on this host: "ipsec-mb" or "OpenSSL".
const char* fastest_library();

}  // namespace pbox::crypto
