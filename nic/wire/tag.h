// The 16-byte tag at the end of every packet. Without keys (security.insecure) it is a CRC32C,
// padded with zeros, over the header and, if configured, over the payload too. nic/seal makes the
// tags of sessions with keys.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/crc32c.h"
#include "nic/wire/header.h"

namespace pbox::wire {

using Tag = std::array<std::byte, limits::kTagBytes>;

struct TagPolicy {
  bool payload_crc = false;  // false: only the UDP checksum protects the payload
};

// A header as words. It is assembled, and its tag computed, in this form.
using HeaderWords = std::array<uint64_t, sizeof(Header) / sizeof(uint64_t)>;

// Returns the tag of a packet with this header and `payload_bytes` bytes at `payload`. Any core may
// call it; it does not allocate.
inline Tag make_tag(const TagPolicy& policy, const HeaderWords& words, const std::byte* payload,
                    size_t payload_bytes) {
  PBOX_DCHECK(payload != nullptr || payload_bytes == 0 || !policy.payload_crc);
  uint32_t crc = crc32c_words(words);
  if (policy.payload_crc) crc = crc32c(crc, payload, payload_bytes);
  return std::bit_cast<Tag>(std::array<uint64_t, 2>{crc, 0});
}

// The same from a Header, with header.payload_bytes bytes at `payload`.
inline Tag make_tag(const TagPolicy& policy, const Header& header, const std::byte* payload) {
  return make_tag(policy, std::bit_cast<HeaderWords>(header), payload, header.payload_bytes);
}

// Returns whether the tags are equal. Takes the same time whatever the tags are.
inline bool is_equal(const Tag& a, const Tag& b) {
  const auto left = std::bit_cast<std::array<uint64_t, 2>>(a);
  const auto right = std::bit_cast<std::array<uint64_t, 2>>(b);
  return ((left[0] ^ right[0]) | (left[1] ^ right[1])) == 0;
}

// Returns whether the packet's tag is right. Only for packets that parse() has accepted.
inline bool verify_tag(const TagPolicy& policy, const Parsed& parsed) {
  PBOX_DCHECK(parsed.payload != nullptr && parsed.tag != nullptr);
  Tag received;
  std::memcpy(received.data(), parsed.tag, sizeof(received));
  return is_equal(received, make_tag(policy, parsed.header, parsed.payload));
}

}  // namespace pbox::wire
