// The 16-byte tag that ends every packet. Without keys (`insecure`) it is a CRC32C over the header,
// and over the payload too if asked for, zero-padded; the place of a keyed tag is the same.
#pragma once

#include <array>
#include <cstddef>

#include "base/limits.h"
#include "nic/wire/header.h"

namespace pbox::wire {

using Tag = std::array<std::byte, limits::kTagBytes>;

struct TagPolicy {
  bool payload_crc = false;  // else the payload rests on the UDP checksum
};

// Tag of a packet. header.payload_bytes bytes at payload. Any core; no allocation.
Tag make_tag(const TagPolicy& policy, const Header& header, const std::byte* payload);

// Checks the tag that follows the payload of a parsed packet.
bool verify_tag(const TagPolicy& policy, const Parsed& parsed);

}  // namespace pbox::wire
