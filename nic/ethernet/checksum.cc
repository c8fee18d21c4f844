#include "nic/ethernet/checksum.h"

#include "base/check.h"

namespace pbox::nic {
namespace {

// A 16-byte vector, which is part of the build's baseline. Both compilers turn it into the
// processor's vector instructions. Plain loops reach only a half or a fifth of this speed.
using Words = uint32_t __attribute__((vector_size(16)));
constexpr size_t kLanes = sizeof(Words) / sizeof(uint32_t);
constexpr size_t kBlockBytes = 4 * sizeof(Words);

Words load(const std::byte* at) {
  Words words;
  std::memcpy(&words, at, sizeof(words));
  return words;
}

}  // namespace

uint64_t sum_words(std::span<const std::byte> bytes) {
  PBOX_DCHECK(bytes.size() <= size_t{64} * 1024);
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  // The two halves of each 32-bit word are summed separately, so that no lane overflows below 2
  // MiB. Two sums of each kind alternate, so that additions do not wait for each other.
  Words low[2] = {};
  Words high[2] = {};
  for (; left >= kBlockBytes; left -= kBlockBytes, at += kBlockBytes) {
    for (size_t vector = 0; vector < 4; ++vector) {
      const Words words = load(at + vector * sizeof(Words));
      low[vector % 2] += words & 0xffff;
      high[vector % 2] += words >> 16;
    }
  }
  uint64_t sum = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum += uint64_t{low[0][lane]} + low[1][lane] + high[0][lane] + high[1][lane];
  }
  for (; left >= 4; left -= 4, at += 4) sum += sum_header<4>(at);
  PBOX_DCHECK(left < 4);
  if (left > 0) {
    uint32_t rest = 0;
    std::memcpy(&rest, at, left);
    sum += rest;
  }
  return sum;
}

}  // namespace pbox::nic
