// The 16-byte tag that ends every packet. Without keys (`insecure`) it is a CRC32C over the header,
// and over the payload too if asked for, zero-padded; the place of a keyed tag is the same.
#pragma once

#include <array>
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

// Tag of a packet. header.payload_bytes bytes at payload. Any core; no allocation.
inline Tag make_tag(const TagPolicy& policy, const Header& header, const std::byte* payload) {
  uint32_t crc = crc32c(0, reinterpret_cast<const std::byte*>(&header), sizeof(Header));
  if (policy.payload_crc) crc = crc32c(crc, payload, header.payload_bytes);
  Tag tag{};
  std::memcpy(tag.data(), &crc, sizeof(crc));
  return tag;
}

// Checks the tag that follows the payload of a parsed packet.
inline bool verify_tag(const TagPolicy& policy, const Parsed& parsed) {
  const Tag expected = make_tag(policy, parsed.header, parsed.payload);
  Tag received;
  std::memcpy(received.data(), parsed.payload + parsed.header.payload_bytes, received.size());
  return received == expected;
}

}  // namespace pbox::wire
