// Seals packets with AES-256 in GCM (NIST SP 800-38D), or in GMAC, which only authenticates. The
// nonce is the key's IV xor the packet number.
//
// Intel's ipsec-mb does the computation on amd64, and OpenSSL elsewhere. The bytes on the wire are
// the same with both.
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
  // kIvBytes bytes, followed by zeros. It is written by one store, because libraries load a nonce
  // in wide words, which would stall on narrow stores.
  struct alignas(16) Nonce {
    std::array<std::byte, 16> bytes{};
  };
  static Nonce pad(const std::array<std::byte, kIvBytes>& iv);
  static Nonce nonce_of(const Nonce& iv, const wire::HeaderWords& header);
};

// kFastest: ipsec-mb if the CPU is amd64 and has AES instructions, otherwise OpenSSL.
enum class Library { kFastest, kOpenSsl };

// `pages` holds the expanded keys and outlives the cipher; OpenSSL keeps them in its own memory.
// Only one thread at a time may use `pages`, which making and destroying a cipher do.
// kResourceExhausted: there is no memory for the keys.
Result<std::unique_ptr<Cipher>> make_cipher(Suite suite, SecretPages& pages,
                                            Library library = Library::kFastest);

// Returns the library that kFastest stands for on this host: "ipsec-mb" or "OpenSSL".
const char* fastest_library();

}  // namespace pbox::crypto
