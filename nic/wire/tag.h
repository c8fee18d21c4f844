// The 16-byte tag that ends every packet. Without keys (`insecure`) it is a CRC32C over the header,
// and over the payload too if asked for, zero-padded; the place of a keyed tag is the same.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/limits.h"
#include "nic/wire/crc32c.h"
#include "nic/wire/header.h"

namespace pbox::wire {

using Tag = std::array<std::byte, limits::kTagBytes>;

struct TagPolicy {
  bool payload_crc = false;  // else the payload rests on the UDP checksum
};

// A header as words: what the tag is computed over, and how it is put together fast.
using HeaderWords = std::array<uint64_t, sizeof(Header) / sizeof(uint64_t)>;

// Tag of a packet whose header is made of these words. payload_bytes bytes at payload. Any core; no
// allocation.
inline Tag make_tag(const TagPolicy& policy, const HeaderWords& words, const std::byte* payload,
                    size_t payload_bytes) {
  uint32_t crc = crc32c_words(words);
  if (policy.payload_crc) crc = crc32c(crc, payload, payload_bytes);
  return std::bit_cast<Tag>(std::array<uint64_t, 2>{crc, 0});
}

// The same for a packet whose header is at hand; header.payload_bytes bytes at payload.
inline Tag make_tag(const TagPolicy& policy, const Header& header, const std::byte* payload) {
  return make_tag(policy, std::bit_cast<HeaderWords>(header), payload, header.payload_bytes);
}

// Checks the tag that follows the payload of a parsed packet.
inline bool verify_tag(const TagPolicy& policy, const Parsed& parsed) {
  const Tag expected = make_tag(policy, parsed.header, parsed.payload);
  uint64_t received[2], wanted[2];
  std::memcpy(received, parsed.payload + parsed.header.payload_bytes, sizeof(received));
  std::memcpy(wanted, expected.data(), sizeof(wanted));
  return ((received[0] ^ wanted[0]) | (received[1] ^ wanted[1])) == 0;
}

}  // namespace pbox::wire
