// Seals the packets of one direction of one session on one pipeline, and opens them: AES-256 in GCM
// (NIST SP 800-38D), or in GMAC, its authentication alone. The nonce is the key's IV xor the packet
// number, which is part of the header; whoever sends must use a number once.
//
// The bytes on the wire do not depend on the library that computes them: Intel's ipsec-mb on amd64,
// OpenSSL elsewhere.
#pragma once

#include <memory>
#include <span>

#include "nic/seal/keys.h"
#include "nic/wire/tag.h"

namespace pbox::seal {

// One core at a time.
class PacketCipher {
 public:
  virtual ~PacketCipher() = default;

  // Returns the tag of a packet. With kGcm256 the encrypted payload is written to `to`, which may
  // be where the payload is; with kGmac256 `to` is not used.
  virtual wire::Tag seal(const wire::HeaderWords& header, std::span<const std::byte> payload,
                         std::byte* to) = 0;
  // Returns whether the tag is right. With kGcm256 the decrypted payload is written to `to`, which
  // may be where the payload is. If the tag is wrong, `to` has no meaning and must not be used.
  virtual bool open(const wire::HeaderWords& header, std::span<const std::byte> payload,
                    const wire::Tag& tag, std::byte* to) = 0;

 protected:
  using Nonce = std::array<std::byte, kIvBytes>;
  static Nonce nonce_of(const std::array<std::byte, kIvBytes>& iv, const wire::HeaderWords& header);
};

// kFastest: ipsec-mb where the CPU is amd64 and has AES instructions, otherwise OpenSSL.
enum class Library { kFastest, kOpenSsl };

// Makes a cipher with these keys. `pages` holds the expanded keys and outlives the cipher; with
// OpenSSL they are in its own memory. Control thread. kResourceExhausted: no memory for the keys.
Result<std::unique_ptr<PacketCipher>> make_packet_cipher(Suite suite, const Keys& keys,
                                                         SecretPages& pages,
                                                         Library library = Library::kFastest);

// "ipsec-mb" or "OpenSSL", which kFastest stands for on this host.
const char* fastest_library();

}  // namespace pbox::seal
