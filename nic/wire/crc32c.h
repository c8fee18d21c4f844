// CRC32C (Castagnoli; RFC 3720 appendix B.4). Own code because Debian 12 ships no library of it and
// it is computed per packet: the processor's instruction where there is one, a table elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbox::wire {

// Continues from `crc` (0 to start). Any core; no allocation.
uint32_t crc32c(uint32_t crc, const std::byte* data, size_t bytes);

// The table version, for tests and machines without the instruction.
uint32_t crc32c_portable(uint32_t crc, const std::byte* data, size_t bytes);

}  // namespace pbox::wire
