// Assigns the chunks of a box to its pipelines: a pure function of sizes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pbox::placement {

// Assigns the chunks, largest first, each to the least loaded bin (PHub's approximate set
// partition; LPT, Graham 1969: at most 4/3 of the best makespan). `loads_bytes` is the load that
// each bin already carries; its size is the number of bins, in [1, 256). Ties go to the lower
// index, so equal inputs give equal maps. Returns one bin per chunk.
std::vector<uint8_t> assign_chunks(std::span<const uint32_t> chunk_bytes,
                                   std::vector<uint64_t> loads_bytes);

}  // namespace pbox::placement
