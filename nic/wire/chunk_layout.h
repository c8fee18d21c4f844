// How a tensor is divided into chunks, and a chunk into fragments. Box and worker compute the
// layout from the same values, so it is never sent. All functions are pure.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::wire {

// Returns a mask with bits [0, count) set; count is in [1, 64].
constexpr uint64_t full_mask(uint32_t count) {
  PBOX_DCHECK(count >= 1 && count <= limits::kFragmentCountMax);
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// Returns the number of fragments of a chunk. `fragment_bytes` must be positive.
constexpr uint32_t fragment_count(uint32_t chunk_bytes, uint32_t fragment_bytes) {
  PBOX_DCHECK(fragment_bytes > 0);
  return (chunk_bytes + fragment_bytes - 1) / fragment_bytes;
}

// Returns the payload bytes of fragment `index`, which is in [0, fragment_count). All fragments
// except the last have `fragment_bytes`.
constexpr uint32_t fragment_length(uint32_t chunk_bytes, uint32_t fragment_bytes, uint32_t index) {
  const uint32_t offset = index * fragment_bytes;
  PBOX_DCHECK(offset < chunk_bytes);
  const uint32_t left = chunk_bytes - offset;
  return left < fragment_bytes ? left : fragment_bytes;
}

// Returns the number of chunks of a tensor. `chunk_bytes` must be positive.
constexpr uint64_t chunk_count(uint64_t tensor_bytes, uint32_t chunk_bytes) {
  PBOX_DCHECK(chunk_bytes > 0);
  return (tensor_bytes + chunk_bytes - 1) / chunk_bytes;
}

// Returns the largest fragment payload, in bytes, for a path whose MTU is `mtu` bytes with the IP
// header. Returns 0 if the MTU is too small.
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
