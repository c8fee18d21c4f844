// A packet that a port would send, as one piece.
#pragma once

#include <cstring>
#include <vector>

#include "nic/port.h"

namespace pbox::test {

inline std::vector<std::byte> packet_bytes(const nic::TxPacket& packet) {
  const size_t payload_bytes = packet.header.payload_bytes;
  std::vector<std::byte> bytes(limits::kPacketOverheadBytes + payload_bytes);
  std::memcpy(bytes.data(), &packet.header, limits::kHeaderBytes);
  std::byte* end = bytes.data() + limits::kHeaderBytes;
  if (payload_bytes > 0) std::memcpy(end, packet.payload, payload_bytes);
  std::memcpy(end + payload_bytes, packet.tag.data(), packet.tag.size());
  return bytes;
}

}  // namespace pbox::test
