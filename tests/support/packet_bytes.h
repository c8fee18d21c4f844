// The bytes of a packet that a port would send, in one piece.
#pragma once

#include <cstring>
#include <vector>

#include "nic/port.h"

namespace pbox::test {

// Replaces the content of `bytes` with the packet.
inline void write_packet(const nic::TxPacket& packet, std::vector<std::byte>& bytes) {
  const size_t payload_bytes = packet.header.payload_bytes;
  bytes.resize(limits::kPacketOverheadBytes + payload_bytes);
  std::memcpy(bytes.data(), &packet.header, limits::kHeaderBytes);
  std::byte* end = bytes.data() + limits::kHeaderBytes;
  if (payload_bytes > 0) std::memcpy(end, packet.payload, payload_bytes);
  std::memcpy(end + payload_bytes, packet.tag.data(), packet.tag.size());
}

inline std::vector<std::byte> packet_bytes(const nic::TxPacket& packet) {
  std::vector<std::byte> bytes;
  write_packet(packet, bytes);
  return bytes;
}

}  // namespace pbox::test
