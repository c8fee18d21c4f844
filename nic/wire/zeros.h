// Fragments that are zero need not be sent. One packet of type ZEROS names the fragments of a push,
// or of a result, in which every bit is 0. A float of -0 is not zero in this sense. All functions
// are pure; any thread may call them. See docs/protocol.md, Zeros.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/header.h"

namespace pbox::wire {

// The first version of the control protocol whose peers understand the packet.
inline constexpr uint32_t kZerosVersion = 3;

// Payload of ZEROS. header.fragment is the lowest of the fragments.
struct ZerosPayload {
  uint64_t mask = 0;  // bit i: fragment i; not 0
};
static_assert(sizeof(ZerosPayload) == 8);

// Returns whether all bits are zero. Stops at the first block of 64 bytes that is not zero.
inline bool is_zero(const std::byte* bytes, size_t count) {
  constexpr size_t kBlockBytes = 64;
  size_t at = 0;
  for (; at + kBlockBytes <= count; at += kBlockBytes) {
    uint64_t words[kBlockBytes / sizeof(uint64_t)];
    std::memcpy(words, bytes + at, sizeof(words));
    uint64_t any = 0;
    for (const uint64_t word : words) any |= word;
    if (any != 0) return false;
  }
  return std::all_of(bytes + at, bytes + count, [](std::byte one) { return one == std::byte{0}; });
}

// Returns the fragments in `mask` that are zero. `bytes` points to the chunk, of `chunk_bytes`.
inline uint64_t zero_fragments(const std::byte* bytes, uint32_t chunk_bytes,
                               uint32_t fragment_bytes, uint64_t mask) {
  PBOX_DCHECK((mask & ~full_mask(fragment_count(chunk_bytes, fragment_bytes))) == 0);
  uint64_t zeros = 0;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    const auto fragment = static_cast<uint32_t>(std::countr_zero(left));
    const uint32_t length = fragment_length(chunk_bytes, fragment_bytes, fragment);
    if (is_zero(bytes + size_t{fragment} * fragment_bytes, length)) {
      zeros |= uint64_t{1} << fragment;
    }
  }
  return zeros;
}

// Returns the bytes that these fragments of a chunk have in total.
inline uint32_t bytes_of_fragments(uint32_t chunk_bytes, uint32_t fragment_bytes, uint64_t mask) {
  uint32_t bytes = 0;
  for (uint64_t left = mask; left != 0; left &= left - 1) {
    bytes +=
        fragment_length(chunk_bytes, fragment_bytes, static_cast<uint32_t>(std::countr_zero(left)));
  }
  return bytes;
}

// Returns the fragments that a ZEROS packet names; 0 if malformed. `full_mask`: the chunk's.
inline uint64_t read_zeros(const Parsed& parsed, uint64_t full_mask) {
  PBOX_DCHECK(parsed.header.type() == PacketType::kZeros);
  if (parsed.header.payload_bytes != sizeof(ZerosPayload)) return 0;
  ZerosPayload zeros;
  std::memcpy(&zeros, parsed.payload, sizeof(zeros));
  const bool fits = zeros.mask != 0 && (zeros.mask & ~full_mask) == 0 &&
                    std::countr_zero(zeros.mask) == parsed.header.fragment;
  return fits ? zeros.mask : 0;
}

}  // namespace pbox::wire
