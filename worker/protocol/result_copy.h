// Copies a result from the receive buffer into the caller's tensor.
#pragma once

#include <cstddef>

namespace pbox::worker {

// Like memcpy, but writes the destination's cache lines to memory without fetching them first
// (non-temporal stores). It is faster if the destination is not in cache and is read much later,
// and slower if it is in cache. The bytes are visible to every thread that synchronises with this
// one afterwards.
void copy_past_cache(std::byte* destination, const std::byte* source, size_t bytes);

}  // namespace pbox::worker
