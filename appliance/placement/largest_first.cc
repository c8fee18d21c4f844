#include "appliance/placement/largest_first.h"

#include <array>

#include "base/check.h"

namespace pbox::placement {
namespace {

constexpr uint32_t kDigitBits = 11;
constexpr uint32_t kDigits = 1u << kDigitBits;

}  // namespace

std::vector<uint32_t> largest_first(std::span<const uint32_t> chunk_bytes,
                                    std::vector<uint32_t> chunks) {
  std::vector<uint32_t> sorted(chunks.size());
  for (uint32_t shift = 0; shift < 32; shift += kDigitBits) {
    // Complemented, so that larger chunks come first.
    const auto digit = [&](uint32_t chunk) {
      PBOX_DCHECK(chunk < chunk_bytes.size());
      return (~chunk_bytes[chunk] >> shift) % kDigits;
    };
    std::array<uint32_t, kDigits> begin{};
    for (const uint32_t chunk : chunks) ++begin[digit(chunk)];
    uint32_t next = 0;
    for (uint32_t& count : begin) {
      const uint32_t here = count;
      count = next;
      next += here;
    }
    PBOX_DCHECK(next == chunks.size());
    for (const uint32_t chunk : chunks) sorted[begin[digit(chunk)]++] = chunk;
    chunks.swap(sorted);
  }
  return chunks;
}

}  // namespace pbox::placement
