#include "worker/protocol/result_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/numa_arena.h"

// This file is compiled once per target: foreach_target.h includes it again with HWY_TARGET set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/protocol/result_copy.cc"
// This include must follow HWY_TARGET_INCLUDE, and precede Highway's other headers.
#include <hwy/foreach_target.h>
// These must follow foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace pbox::worker::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void copy(std::byte* destination, const std::byte* source, size_t bytes) {
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
  PBOX_DCHECK(at <= bytes && bytes - at < kCacheLineBytes);
  std::memcpy(destination + at, source + at, bytes - at);
  hwy::FlushStream();
}

}  // namespace pbox::worker::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pbox::worker {

// The compiler's flags alone may lead to the target without vector instructions, which has no
// non-temporal stores.
static_assert(HWY_ARCH_X86 == 0 || (HWY_TARGETS & HWY_AVX2) != 0);

HWY_EXPORT(copy);

void copy_past_cache(std::byte* destination, const std::byte* source, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy)(destination, source, bytes);
}

}  // namespace pbox::worker
#endif  // HWY_ONCE
