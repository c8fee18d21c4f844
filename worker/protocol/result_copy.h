// Copies a result from the receive buffer into the caller's tensor.
#pragma once

#include <cstddef>

namespace pbox::worker {

// As memcpy, but the destination's cache lines are written to memory without being fetched first
// (non-temporal stores). Faster where the destination is out of cache and read much later; slower
// where it is in cache. The bytes are visible to whoever synchronises with this thread afterwards.
void copy_past_cache(std::byte* destination, const std::byte* source, size_t bytes);

}  // namespace pbox::worker
