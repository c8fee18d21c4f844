#include "nic/wire/tag.h"

#include <cstring>

#include "nic/wire/crc32c.h"

namespace pbox::wire {
namespace {

uint32_t checksum(const TagPolicy& policy, const Header& header, const std::byte* payload) {
  std::array<std::byte, sizeof(Header)> bytes;
  std::memcpy(bytes.data(), &header, sizeof(Header));
  const uint32_t crc = crc32c(0, bytes.data(), bytes.size());
  return policy.payload_crc ? crc32c(crc, payload, header.payload_bytes) : crc;
}

}  // namespace

Tag make_tag(const TagPolicy& policy, const Header& header, const std::byte* payload) {
  Tag tag{};
  const uint32_t crc = checksum(policy, header, payload);
  std::memcpy(tag.data(), &crc, sizeof(crc));
  return tag;
}

bool verify_tag(const TagPolicy& policy, const Parsed& parsed) {
  const Tag expected = make_tag(policy, parsed.header, parsed.payload);
  return std::memcmp(expected.data(), parsed.payload + parsed.header.payload_bytes,
                     expected.size()) == 0;
}

}  // namespace pbox::wire
