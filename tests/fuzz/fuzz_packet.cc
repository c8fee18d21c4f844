// Parses any bytes as a data packet. An accepted packet must equal the one that would be sent with
// the same header and payload. The input begins with a byte of options.
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/collective.h"
#include "nic/wire/header.h"
#include "nic/wire/tag.h"
#include "nic/wire/zeros.h"
#include "tests/fuzz/input.h"

namespace pbox::fuzz {
namespace {

std::vector<std::byte> encode(const wire::Header& header, const std::byte* payload,
                              const wire::Tag& tag) {
  std::vector<std::byte> packet(sizeof(header) + header.payload_bytes + tag.size());
  std::memcpy(packet.data(), &header, sizeof(header));
  if (header.payload_bytes > 0) {
    std::memcpy(packet.data() + sizeof(header), payload, header.payload_bytes);
  }
  std::memcpy(packet.data() + sizeof(header) + header.payload_bytes, tag.data(), tag.size());
  return packet;
}

// Checks that writing the round that a header describes gives the same header.
void check_shape(const wire::Header& header) {
  wire::RoundShape shape;
  if (!wire::read_shape(header, shape)) return;
  PBOX_CHECK(shape.fragment_count >= 1 && shape.fragment_count <= limits::kFragmentCountMax);
  PBOX_CHECK(shape.combine != wire::Combine::kMean || wire::is_floating_point(shape.dtype));
  wire::Header again = header;
  again.timestamp_us = 0;
  again.credit = again.dtype_scale = 0;
  wire::write_shape(shape, wire::is_empty_push(header), again);
  PBOX_CHECK(std::memcmp(&again, &header, sizeof(header)) == 0);
}

// Checks that a ZEROS packet names only fragments of its chunk, whatever the chunk's size.
void check_zeros(const wire::Parsed& parsed) {
  for (uint32_t fragments = 1; fragments <= limits::kFragmentCountMax; ++fragments) {
    const uint64_t named = wire::read_zeros(parsed, wire::full_mask(fragments));
    if (named == 0) continue;
    PBOX_CHECK(parsed.header.payload_bytes == sizeof(wire::ZerosPayload));
    PBOX_CHECK((named & ~wire::full_mask(fragments)) == 0);
    PBOX_CHECK(std::countr_zero(named) == parsed.header.fragment);
    PBOX_CHECK(std::memcmp(&named, parsed.payload, sizeof(named)) == 0);
  }
}

void check_taken(const std::vector<std::byte>& packet, const wire::Parsed& parsed,
                 const wire::TagPolicy& policy) {
  const wire::Header& header = parsed.header;
  PBOX_CHECK(header.version() == limits::kWireVersion);
  PBOX_CHECK(header.type_value() < wire::kPacketTypeCount);
  PBOX_CHECK((header.flags & wire::flag::kReserved) == 0);
  wire::Header rebuilt = header;
  rebuilt.set_type(header.type());
  const wire::Tag tag = wire::make_tag(policy, rebuilt, parsed.payload);
  const auto sent = encode(rebuilt, parsed.payload, tag);
  PBOX_CHECK(sent.size() == packet.size());
  // All bytes before the tag are always the same. The tag is the same if and only if it verifies.
  PBOX_CHECK(std::memcmp(sent.data(), packet.data(), sent.size() - tag.size()) == 0);
  PBOX_CHECK(wire::verify_tag(policy, parsed) == (sent == packet));

  wire::Parsed again;
  PBOX_CHECK(wire::parse(sent.data(), static_cast<uint32_t>(sent.size()), again) ==
             wire::Reject::kNone);
  PBOX_CHECK(wire::verify_tag(policy, again));
  PBOX_CHECK(std::memcmp(&again.header, &header, sizeof(header)) == 0);
  check_shape(header);
  if (header.type() == wire::PacketType::kZeros) check_zeros(parsed);
}

// Checks that the layout that header fields are checked against covers a chunk exactly once.
void check_layout(Input& input) {
  const uint32_t fragment_bytes =
      limits::kFragmentBytesMin +
      input.number<uint16_t>() % (limits::kFragmentBytesMax - limits::kFragmentBytesMin + 1);
  const uint32_t chunk_bytes =
      1 + input.number<uint32_t>() % (limits::kFragmentCountMax * fragment_bytes);
  const uint32_t count = wire::fragment_count(chunk_bytes, fragment_bytes);
  PBOX_CHECK(count >= 1 && count <= limits::kFragmentCountMax);
  PBOX_CHECK(std::popcount(wire::full_mask(count)) == static_cast<int>(count));
  uint64_t covered = 0;
  for (uint32_t index = 0; index < count; ++index) {
    const uint32_t length = wire::fragment_length(chunk_bytes, fragment_bytes, index);
    PBOX_CHECK(length > 0 && length <= fragment_bytes);
    covered += length;
  }
  PBOX_CHECK(covered == chunk_bytes);
}

}  // namespace
}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pbox;
  fuzz::Input input(data, size);
  const uint8_t options = input.byte();
  const wire::TagPolicy policy{.payload_crc = (options & 1) != 0};
  if ((options & 2) != 0) {
    fuzz::check_layout(input);
    return 0;
  }
  const auto packet = input.bytes(size);
  // Both ways to compute a CRC32C agree, from any initial value.
  PBOX_CHECK(wire::crc32c(options, packet.data(), packet.size()) ==
             wire::crc32c_portable(options, packet.data(), packet.size()));
  wire::Parsed parsed;
  const auto reject = wire::parse(packet.data(), static_cast<uint32_t>(packet.size()), parsed);
  if (reject == wire::Reject::kNone) fuzz::check_taken(packet, parsed, policy);
  return 0;
}
