// Sorts chunks into the order in which they are placed. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pbox::placement {

// Returns `chunks` (indices into `chunk_bytes`) sorted by size, largest first; chunks of equal size
// keep their order. O(n): radix sort.
std::vector<uint32_t> largest_first(std::span<const uint32_t> chunk_bytes,
                                    std::vector<uint32_t> chunks);

}  // namespace pbox::placement
