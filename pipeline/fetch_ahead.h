// Prefetching: how a pipeline's core lets memory fetch the next packets while it works on others.
// On the data path; used by Engine alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/numa_arena.h"
#include "nic/port.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

// How far ahead of the sum packets are fetched, so that neither memory nor the core waits: about 6
// KiB. Payloads go into the second-level cache, because the first level has few miss buffers and
// the sum needs them. The values were found with `pbox-perf pipeline` and `pbox-perf wire`.
//
// * Small packets are fetched whole, four ahead: one half before a packet is worked on, the other
//   half afterwards.
// * A large packet's head is fetched first, and its payload later, piece by piece, while the packet
//   before it is summed. The processor's own prefetcher starts late in each packet.
// * Neither is fetched all at once, because memory takes few lines at a time, and the sum would
//   wait behind the others. Halves of small packets save 9 %. Pieces of 512 B, not 2 KiB, save 7 %.
// * Packets that the core has just copied itself are in its caches, except for the first level.
//   FetchChoice finds out whether that is so.
inline constexpr uint32_t kSmallPacketBytes = 2048;
inline constexpr size_t kPieceBytes = 512;
inline constexpr size_t kPiecesAhead = 12;
struct AheadOfSmall {
  static constexpr size_t kPackets = 4;
  static constexpr uint32_t kBytes = kSmallPacketBytes;
  static constexpr uint32_t kFirstBytes = 768;  // half a packet, where the MTU is 1500
  static constexpr int kLocality = 1;
  static constexpr bool kInPieces = false;
};
struct AheadOfLarge {
  static constexpr size_t kPackets = 1;
  static constexpr uint32_t kBytes = 192, kFirstBytes = kBytes;
  static constexpr int kLocality = 3;
  static constexpr bool kInPieces = true;
};
struct AheadOfCached {
  static constexpr size_t kPackets = 2;
  static constexpr uint32_t kBytes = 64, kFirstBytes = kBytes;
  static constexpr int kLocality = 3;
  static constexpr bool kInPieces = false;
};

// Returns where the packet begins in the memory that the device has written.
[[gnu::always_inline]] inline const std::byte* begin_of(const nic::RxPacket& packet) {
  return packet.payload == nullptr ? packet.data : packet.payload - limits::kHeaderBytes;
}

// Fetches the beginning of a packet; called before the work on an earlier one. Here and below,
// functions are inlined by force, because GCC removes calls of a function that only prefetches.
template <typename Ahead>
[[gnu::always_inline]] inline void fetch(const nic::RxPacket& packet) {
  if (packet.bytes == 0) return;  // an empty datagram may have no memory at all
  PBOX_DCHECK(packet.data != nullptr);
  const std::byte* const begin = begin_of(packet);
  const std::byte* const end = begin + std::min(packet.bytes, Ahead::kFirstBytes);
#pragma GCC unroll 4
  for (const std::byte* line = begin; line < end; line += kCacheLineBytes) {
    __builtin_prefetch(line, 0, Ahead::kLocality);
  }
  __builtin_prefetch(begin + packet.bytes - 1, 0, 1);  // the tag
}

// Fetches the rest of a packet; called after the work on the earlier packet (see fetch()).
template <typename Ahead>
[[gnu::always_inline]] inline void fetch_rest(const nic::RxPacket& packet) {
  if constexpr (Ahead::kFirstBytes < Ahead::kBytes) {
    if (packet.bytes <= Ahead::kFirstBytes) return;
    const std::byte* const begin = begin_of(packet);
    const std::byte* const end = begin + std::min(packet.bytes, Ahead::kBytes);
#pragma GCC unroll 4
    for (const std::byte* line = begin + Ahead::kFirstBytes; line < end; line += kCacheLineBytes) {
      __builtin_prefetch(line, 0, Ahead::kLocality);
    }
  }
}

// An unrolled loop would issue prefetches faster than memory accepts them, which delays the sum.
[[gnu::always_inline]] inline void fetch_lines(const std::byte* begin, const std::byte* end) {
  for (const std::byte* line = begin; line < end; line += kCacheLineBytes) {
    __builtin_prefetch(line, 0, 1);
  }
}

// Fetches bytes [from, from + bytes) of a payload. Offsets beyond its end continue in the next
// packet.
[[gnu::always_inline]] inline void fetch_behind(std::span<const std::byte> payload,
                                                const nic::RxPacket& next, size_t from,
                                                size_t bytes) {
  PBOX_DCHECK(bytes <= kPieceBytes);
  const size_t end = from + bytes;
  const size_t size = payload.size();
  fetch_lines(payload.data() + std::min(from, size), payload.data() + std::min(end, size));
  const size_t next_begin = std::max(from, size) - size;
  const size_t next_end = std::min<size_t>(std::max(end, size) - size, next.bytes);
  if (next_begin < next_end) {
    fetch_lines(begin_of(next) + next_begin, begin_of(next) + next_end);
  }
}

// Does the same as sum(accumulator, payload, its elements, limit), piece by piece, and prefetches
// between the pieces. Returns false if the payload contains an unsound value. Elements have
// 1 << element_shift bytes.
inline bool sum_in_pieces(reduce::AccumulateFunction sum, float* accumulator,
                          std::span<const std::byte> payload, uint32_t element_shift, float limit,
                          const nic::RxPacket& next) {
  static_assert(kPieceBytes % sizeof(float) == 0);
  PBOX_DCHECK(payload.size() % (size_t{1} << element_shift) == 0);
  bool are_sound = true;
  for (size_t at = 0; at < payload.size(); at += kPieceBytes) {
    const size_t bytes = std::min(kPieceBytes, payload.size() - at);
    fetch_behind(payload, next, at + kPiecesAhead * kPieceBytes, bytes);
    are_sound &= sum(accumulator + (at >> element_shift), payload.data() + at,
                     bytes >> element_shift, limit);
  }
  return are_sound;
}

// Decides whether packets are in the core's caches when the core comes to them, so that prefetching
// only costs time, or in memory. This depends on the device, on where it writes to (Intel's DDIO
// writes into the third-level cache), on what the core copies, and on how much is in flight. So it
// is measured: in the turns that PhaseClock samples, both assumptions are tried alternately, and
// each pair of bursts gives one vote.
class FetchChoice {
 public:
  static constexpr int kVotesMax = 16;         // bounds how long a change takes to win
  static constexpr uint64_t kBytesMin = 4096;  // payload bytes; smaller bursts are not measured

  bool in_cache() const { return votes_ > 0; }
  // Returns the assumption to use for the burst of a sampled turn: true if packets are in a cache.
  bool trial() const { return tries_cache_; }
  // Reports that this burst took `cycles` for `bytes` of payload, at least kBytesMin.
  void note(uint64_t cycles, uint64_t bytes) {
    PBOX_DCHECK(bytes > 0);
    const uint64_t cost = cycles * 1024 / bytes;
    if (!std::exchange(tries_cache_, !tries_cache_)) {
      memory_cost_ = cost;
      return;
    }
    votes_ = std::clamp(votes_ + (cost < memory_cost_ ? 1 : -1), -kVotesMax, kVotesMax);
    PBOX_DCHECK(!tries_cache_);
  }

 private:
  uint64_t memory_cost_ = 0;  // cycles per KiB of the pair's first burst
  int votes_ = 0;             // > 0: packets are in a cache
  bool tries_cache_ = false;
};

}  // namespace pbox::pipeline
