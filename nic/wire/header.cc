#include "nic/wire/header.h"

#include <cstring>

namespace pbox::wire {

Reject parse(const std::byte* packet, uint32_t packet_bytes, Parsed& parsed) {
  if (packet_bytes < limits::kPacketOverheadBytes) return Reject::kTooShort;
  std::memcpy(&parsed.header, packet, sizeof(Header));
  const Header& header = parsed.header;
  if (header.version() != limits::kWireVersion) return Reject::kVersion;
  if (header.type_value() >= kPacketTypeCount) return Reject::kType;
  if ((header.flags & flag::kReserved) != 0) return Reject::kReserved;
  if (packet_bytes - limits::kPacketOverheadBytes != header.payload_bytes) return Reject::kLength;
  parsed.payload = packet + limits::kHeaderBytes;
  return Reject::kNone;
}

}  // namespace pbox::wire
