#include "worker/protocol/result_copy.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/numa_arena.h"

namespace pbox::worker {

namespace hn = hwy::HWY_NAMESPACE;

// HWY_ATTR enables the target features that the compiler's flags do not enable.
HWY_ATTR void copy_past_cache(std::byte* destination, const std::byte* source, size_t bytes) {
  // write-combining buffers fill a line from stores of any width
  const hn::CappedTag<uint8_t, 16> d;
  const size_t misaligned = reinterpret_cast<uintptr_t>(destination) % kCacheLineBytes;
  const size_t head = std::min(bytes, misaligned == 0 ? 0 : kCacheLineBytes - misaligned);
  std::memcpy(destination, source, head);
  size_t at = head;
  for (; at + kCacheLineBytes <= bytes; at += kCacheLineBytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(source + at);
    auto* to = reinterpret_cast<uint8_t*>(destination + at);
    for (size_t offset = 0; offset < kCacheLineBytes; offset += hn::Lanes(d)) {
      hn::Stream(hn::LoadU(d, from + offset), d, to + offset);
    }
  }
  std::memcpy(destination + at, source + at, bytes - at);
  hwy::FlushStream();
}

}  // namespace pbox::worker
