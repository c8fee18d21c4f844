// CRC32C (Castagnoli; RFC 3720 appendix B.4). PBox has its own code, because Debian 12 has no
// library for it and the checksum is computed for every packet. It uses the processor's instruction
// if the build's baseline has one (x86-64-v2), and a table otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace pbox::wire {

// Does the same as crc32c() with a table. It is the reference implementation, and used on machines
// without the instruction.
uint32_t crc32c_portable(uint32_t crc, const std::byte* data, size_t bytes);

// Returns the CRC32C of `bytes` bytes at `data`, continued from `crc` (0 to start). Any core may
// call it; it does not allocate.
inline uint32_t crc32c(uint32_t crc, const std::byte* data, size_t bytes) {
#if defined(__SSE4_2__)
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++data) {
    narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*data));
  }
  return ~narrow;
#else
  return crc32c_portable(crc, data, bytes);
#endif
}

// Returns the CRC32C of whole words, which may stay in registers.
template <size_t count>
inline uint32_t crc32c_words(const std::array<uint64_t, count>& words) {
#if defined(__SSE4_2__)
  uint64_t state = ~uint32_t{0};
  for (const uint64_t word : words) state = _mm_crc32_u64(state, word);
  return ~static_cast<uint32_t>(state);
#else
  return crc32c_portable(0, reinterpret_cast<const std::byte*>(words.data()), 8 * count);
#endif
}

}  // namespace pbox::wire
