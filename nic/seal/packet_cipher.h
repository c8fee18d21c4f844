// Seals the packets of one direction of a session with one key, and opens them. The nonce is made
// from the key and the packet number in the header, so the side that seals must use each number
// only once.
#pragma once

#include <span>

#include "nic/wire/tag.h"

namespace pbox::seal {

// Used by one core at a time. nic/crypto has the implementations.
class PacketCipher {
 public:
  virtual ~PacketCipher() = default;

  // Returns the tag of a packet. A cipher that encrypts writes the encrypted payload to `to`, which
  // may be the payload's own place; other ciphers do not use `to`.
  virtual wire::Tag seal(const wire::HeaderWords& header, std::span<const std::byte> payload,
                         std::byte* to) = 0;
  // Returns whether the tag is right. A cipher that encrypts writes the decrypted payload to `to`,
  // which may be the payload's own place. If the tag is wrong, the bytes there must not be used.
  virtual bool open(const wire::HeaderWords& header, std::span<const std::byte> payload,
                    const wire::Tag& tag, std::byte* to) = 0;
};

// The keys of one direction, one after the other: generation 0 at first, and the next generation
// after each update. Used by one core at a time.
class KeyChain {
 public:
  virtual ~KeyChain() = default;

  // Return the ciphers of the present generation, the one before, and the next. The side that seals
  // has only present(). The side that opens has all three, but before() may be called only after
  // the first update.
  virtual PacketCipher& present() = 0;
  virtual PacketCipher& before() = 0;
  virtual PacketCipher& next() = 0;
  // Makes the next generation the present one. Takes about ten microseconds.
  virtual void advance() = 0;
  // Erases the keys of the generation before the present one.
  virtual void forget_before() = 0;
};

}  // namespace pbox::seal
