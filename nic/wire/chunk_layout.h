// How a tensor is cut into chunks and a chunk into fragments. Both sides compute it from the same
// values, so neither sends it.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/limits.h"

namespace pbox::wire {

// Bits [0, count) set; count in [1, 64].
constexpr uint64_t full_mask(uint32_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

constexpr uint32_t fragment_count(uint32_t chunk_bytes, uint32_t fragment_bytes) {
  return (chunk_bytes + fragment_bytes - 1) / fragment_bytes;
}

// Payload of fragment `index` in [0, fragment_count): all but the last are whole.
constexpr uint32_t fragment_length(uint32_t chunk_bytes, uint32_t fragment_bytes, uint32_t index) {
  const uint32_t offset = index * fragment_bytes;
  const uint32_t left = chunk_bytes - offset;
  return left < fragment_bytes ? left : fragment_bytes;
}

// Chunks of a tensor; the last one is shorter.
constexpr uint64_t chunk_count(uint64_t tensor_bytes, uint32_t chunk_bytes) {
  return (tensor_bytes + chunk_bytes - 1) / chunk_bytes;
}

// Largest fragment payload for a path MTU in bytes (IP header included), by the family's IP header.
// 0 if the path is too narrow to be served.
constexpr uint32_t fragment_bytes_for_mtu(uint32_t mtu, bool ipv6) {
  const uint32_t overhead = (ipv6 ? 48u : 28u) + limits::kPacketOverheadBytes;
  for (const uint32_t payload : {limits::kFragmentBytesLoopback, limits::kFragmentBytesJumbo,
                                 limits::kFragmentBytesEthernet}) {
    if (mtu >= payload + overhead) return payload;
  }
  if (mtu < limits::kFragmentBytesMin + overhead) return 0;
  return (mtu - overhead) / 64 * 64;
}

}  // namespace pbox::wire
