// How a pipeline's core has memory work on packets while it is at others. On the data path, of
// Engine alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/numa_arena.h"
#include "nic/port.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

// How far ahead of the sum memory works on packets, so that neither it nor the core waits: about 6
// KiB, into the second-level cache, for the first has too few miss buffers, and the sum needs
// those. Small packets are fetched whole, four ahead. Of a large one the head is, and the payload
// while the one before is summed, piece by piece: all of it at once would keep the sum waiting, and
// the processor's own prefetcher starts late in each packet. What the core has just copied itself
// is in its cache, but for the first level. Found with `pbox-perf pipeline` and `wire`; which of
// the two holds, FetchChoice finds.
inline constexpr uint32_t kSmallPacketBytes = 2048;
inline constexpr size_t kPieceBytes = 2048;
inline constexpr size_t kPiecesAhead = 3;
struct AheadOfSmall {
  static constexpr uint32_t kPackets = 4;
  static constexpr uint32_t kBytes = kSmallPacketBytes;
  static constexpr int kLocality = 1;
  static constexpr bool kInPieces = false;
};
struct AheadOfLarge {
  static constexpr uint32_t kPackets = 1;
  static constexpr uint32_t kBytes = 192;
  static constexpr int kLocality = 3;
  static constexpr bool kInPieces = true;
};
struct AheadOfCached {
  static constexpr uint32_t kPackets = 2;
  static constexpr uint32_t kBytes = 64;
  static constexpr int kLocality = 3;
  static constexpr bool kInPieces = false;
};

// Inlined by force, and so below: GCC drops the calls of a function that does nothing but prefetch.
template <typename Ahead>
[[gnu::always_inline]] inline void fetch(const nic::RxPacket& packet) {
  if (packet.bytes == 0) return;  // a datagram may be empty, and have no memory at all
  const std::byte* const end = packet.data + std::min(packet.bytes, Ahead::kBytes);
#pragma GCC unroll 8
  for (const std::byte* line = packet.data; line < end; line += kCacheLineBytes) {
    __builtin_prefetch(line, 0, Ahead::kLocality);
  }
  __builtin_prefetch(packet.data + packet.bytes - 1, 0, 1);  // the tag
}

// Not unrolled: what is asked for faster than memory takes it keeps the sum waiting.
[[gnu::always_inline]] inline void fetch_lines(const std::byte* begin, const std::byte* end) {
  for (const std::byte* line = begin; line < end; line += kCacheLineBytes) {
    __builtin_prefetch(line, 0, 1);
  }
}

// What lies [from, from + bytes) behind the beginning of a payload, which goes on in the next
// packet.
[[gnu::always_inline]] inline void fetch_behind(std::span<const std::byte> payload,
                                                const nic::RxPacket& next, size_t from,
                                                size_t bytes) {
  const size_t end = from + bytes;
  const size_t size = payload.size();
  fetch_lines(payload.data() + std::min(from, size), payload.data() + std::min(end, size));
  const size_t next_begin = std::max(from, size) - size;
  const size_t next_end = std::min<size_t>(std::max(end, size) - size, next.bytes);
  if (next_begin < next_end) fetch_lines(next.data + next_begin, next.data + next_end);
}

// As sum(accumulator, payload, its elements), in pieces.
inline bool sum_in_pieces(reduce::AccumulateFunction sum, float* accumulator,
                          std::span<const std::byte> payload, size_t element_bytes,
                          const nic::RxPacket& next) {
  bool finite = true;
  for (size_t at = 0; at < payload.size(); at += kPieceBytes) {
    const size_t bytes = std::min(kPieceBytes, payload.size() - at);
    fetch_behind(payload, next, at + kPiecesAhead * kPieceBytes, bytes);
    finite &= sum(accumulator + at / element_bytes, payload.data() + at, bytes / element_bytes);
  }
  return finite;
}

// Whether packets are in the core's caches when it comes to them, so that fetching them only costs,
// or in memory. That depends on the device, where it writes to (Intel's write into the third-level
// cache), what the core copies, and how much is under way; so it is not asked but measured: in the
// turns that PhaseClock samples both are tried in turn, and each pair of bursts gives a vote.
class FetchChoice {
 public:
  static constexpr int kVotesMax = 16;         // for one side: more of them outlast no change
  static constexpr uint64_t kBytesMin = 4096;  // of payload: a burst of less shows nothing

  bool in_cache() const { return votes_ > 0; }
  // What the burst of a sampled turn is to assume.
  bool trial() const { return tries_cache_; }
  // That burst took `cycles` for `bytes` of payload.
  void note(uint64_t cycles, uint64_t bytes) {
    const uint64_t cost = cycles * 1024 / bytes;
    if (!std::exchange(tries_cache_, !tries_cache_)) {
      memory_cost_ = cost;
      return;
    }
    votes_ = std::clamp(votes_ + (cost < memory_cost_ ? 1 : -1), -kVotesMax, kVotesMax);
  }

 private:
  uint64_t memory_cost_ = 0;  // of the pair's first burst
  int votes_ = 0;             // > 0: in a cache
  bool tries_cache_ = false;
};

}  // namespace pbox::pipeline
