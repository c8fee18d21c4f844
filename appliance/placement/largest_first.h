// Chunks in the order in which they are placed. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pbox::placement {

// The chunks named by `chunks` (indices into `chunk_bytes`), by size, largest first; equal ones
// stay as they come. O(n): counts digits (radix sort).
std::vector<uint32_t> largest_first(std::span<const uint32_t> chunk_bytes,
                                    std::vector<uint32_t> chunks);

}  // namespace pbox::placement
