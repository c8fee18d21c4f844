#include "worker/protocol/read_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/check.h"
#include "nic/wire/chunk_layout.h"
#include "nic/wire/half.h"
#include "nic/wire/header.h"

namespace pbox::worker {
namespace {

// Elements that are processed at a time, as f32, so that they stay in the first-level cache.
constexpr size_t kBlockElements = 1024;
using Block = std::array<float, kBlockElements>;

void widen(wire::Dtype dtype, float* values, const std::byte* source, size_t count) {
  if (dtype == wire::Dtype::kF32) {
    std::memcpy(values, source, count * sizeof(float));
    return;
  }
  for (size_t index = 0; index < count; ++index) {
    uint16_t half;
    std::memcpy(&half, source + index * sizeof(half), sizeof(half));
    values[index] = dtype == wire::Dtype::kF16 ? wire::widen_f16(half) : wire::widen_bf16(half);
  }
}

void narrow(wire::Dtype dtype, std::byte* destination, const float* values, size_t count) {
  if (dtype == wire::Dtype::kF32) {
    std::memcpy(destination, values, count * sizeof(float));
    return;
  }
  for (size_t index = 0; index < count; ++index) {
    const uint16_t half = dtype == wire::Dtype::kF16 ? wire::narrow_f16(values[index])
                                                     : wire::narrow_bf16(values[index]);
    std::memcpy(destination + index * sizeof(half), &half, sizeof(half));
  }
}

// Sets unsound values to 0, as the box does. A NaN compares false.
void clear_unsound(std::span<float> values, float limit) {
  PBOX_DCHECK(limit > 0);
  for (float& value : values) {
    if (!(std::abs(value) <= limit)) value = 0;
  }
}

uint32_t fragments_of(const CachedChunk& chunk) {
  return wire::fragment_count(chunk.bytes, chunk.fragment_bytes);
}

// Returns how many iterations before the current one a read may have to add.
uint32_t kept_of(uint32_t staleness) {
  return std::max(staleness, 1u) - 1;
}

}  // namespace

uint64_t ReadCache::footprint_bytes(const std::vector<CachedChunk>& chunks, uint32_t staleness) {
  const uint64_t kept = kept_of(staleness);
  uint64_t bytes = 0;
  for (const CachedChunk& chunk : chunks) {
    bytes += align_up(chunk.bytes, kCacheLineBytes) +
             align_up(kept * chunk.bytes, kCacheLineBytes) +
             align_up(kept * sizeof(float), kCacheLineBytes);
  }
  return bytes;
}

ReadCache::ReadCache(const std::vector<CachedChunk>& chunks, uint32_t staleness,
                     float gradient_scale, const wire::GuardSpec& guard, NumaArena& arena)
    : staleness_(staleness),
      kept_(kept_of(staleness)),
      gradient_scale_(gradient_scale),
      guard_(guard) {
  for (const CachedChunk& layout : chunks) {
    PBOX_CHECK(layout.bytes > 0 && layout.fragment_bytes > 0);
    Chunk& chunk = chunks_.emplace_back();
    chunk.layout = layout;
    chunk.model = arena.take(layout.bytes);
    chunk.gradients = arena.take(size_t{kept_} * layout.bytes);
    chunk.rates = reinterpret_cast<float*>(arena.take(kept_ * sizeof(float)));
    chunk.versions.resize(fragments_of(layout));
  }
}

void ReadCache::set_fragment_bytes(uint32_t fragment_bytes) {
  PBOX_CHECK(fragment_bytes > 0);
  for (Chunk& chunk : chunks_) {
    if (chunk.layout.fragment_bytes == fragment_bytes) continue;
    chunk.layout.fragment_bytes = fragment_bytes;
    chunk.versions.assign(fragments_of(chunk.layout), {});
  }
}

bool ReadCache::store(uint32_t chunk_id, uint32_t fragment, Version version,
                      const std::byte* payload) {
  PBOX_DCHECK(chunk_id < chunks_.size());
  Chunk& chunk = chunks_[chunk_id];
  PBOX_DCHECK(fragment < chunk.versions.size());
  Version& here = chunk.versions[fragment];
  const int32_t newer = wire::round_distance(version.clock, here.clock);
  if (newer < 0) return false;
  if (newer == 0 && wire::round_distance(version.applied, here.applied) <= 0) return false;
  const uint32_t fragment_bytes = chunk.layout.fragment_bytes;
  std::memcpy(chunk.model + size_t{fragment} * fragment_bytes, payload,
              wire::fragment_length(chunk.layout.bytes, fragment_bytes, fragment));
  here = version;
  return true;
}

void ReadCache::begin(uint32_t chunk_id, uint32_t fragment, const std::byte* payload) {
  PBOX_DCHECK(chunk_id < chunks_.size() && fragment < chunks_[chunk_id].versions.size());
  chunks_[chunk_id].versions[fragment] = {};
  store(chunk_id, fragment, {.clock = 1, .applied = 1}, payload);
}

uint32_t ReadCache::clock(uint32_t chunk_id) const {
  PBOX_DCHECK(chunk_id < chunks_.size());
  const Chunk& chunk = chunks_[chunk_id];
  uint32_t least = chunk.versions[0].clock;
  for (const Version& version : chunk.versions) {
    if (wire::round_distance(version.clock, least) < 0) least = version.clock;
  }
  return least;
}

bool ReadCache::is_readable(const Version& version, uint32_t round) const {
  return version.clock != 0 &&
         wire::round_distance(version.clock, round + 1) + static_cast<int32_t>(staleness_) >= 0;
}

bool ReadCache::is_readable(uint32_t chunk_id, uint32_t round) const {
  PBOX_DCHECK(chunk_id < chunks_.size());
  const Chunk& chunk = chunks_[chunk_id];
  return std::all_of(chunk.versions.begin(), chunk.versions.end(),
                     [&](const Version& version) { return is_readable(version, round); });
}

uint64_t ReadCache::readable_mask(uint32_t chunk_id, uint32_t round) const {
  const Chunk& chunk = chunks_[chunk_id];
  uint64_t mask = 0;
  for (uint32_t fragment = 0; fragment < chunk.versions.size(); ++fragment) {
    if (is_readable(chunk.versions[fragment], round)) mask |= uint64_t{1} << fragment;
  }
  return mask;
}

void ReadCache::read(uint32_t chunk_id, uint32_t round, float rate, const std::byte* gradient,
                     std::byte* output) {
  PBOX_DCHECK(is_readable(chunk_id, round));
  const Chunk& chunk = chunks_[chunk_id];
  for (uint32_t fragment = 0; fragment < chunk.versions.size(); ++fragment) {
    read_fragment(chunk, fragment, round, rate, gradient, output);
  }
  if (kept_ > 0) chunk.rates[round % kept_] = rate;
}

// The gradient is saved before the output is written, since both may be in the same buffer. It is
// saved after the last use of the oldest kept gradient, whose place it takes.
void ReadCache::read_fragment(const Chunk& chunk, uint32_t fragment, uint32_t round, float rate,
                              const std::byte* gradient, std::byte* output) {
  const CachedChunk& layout = chunk.layout;
  const uint32_t element_bytes = wire::dtype_bytes(layout.dtype);
  const uint32_t applied = chunk.versions[fragment].applied;
  const size_t begin = size_t{fragment} * layout.fragment_bytes;
  const size_t end = begin + wire::fragment_length(layout.bytes, layout.fragment_bytes, fragment);
  // The bound on staleness bounds the own iterations that the copy lacks.
  PBOX_DCHECK(round - applied <= kept_ || wire::round_distance(applied, round) > 0);
  Block weights, update;
  const auto apply = [&](const std::byte* source, float step, size_t count) {
    widen(layout.dtype, update.data(), source, count);
    if (guard_.policy == wire::Guard::kZero) clear_unsound({update.data(), count}, guard_.limit());
    for (size_t index = 0; index < count; ++index) {
      weights[index] -= step * (update[index] * gradient_scale_);
    }
  };
  for (size_t at = begin; at < end; at += kBlockElements * element_bytes) {
    const size_t bytes = std::min(end - at, kBlockElements * element_bytes);
    const size_t count = bytes / element_bytes;
    widen(layout.dtype, weights.data(), chunk.model + at, count);
    for (uint32_t own = applied; wire::round_distance(own, round) < 0; ++own) {
      const uint32_t slot = own % kept_;
      apply(chunk.gradients + size_t{slot} * layout.bytes + at, chunk.rates[slot] * layout.lr_scale,
            count);
    }
    if (wire::round_distance(applied, round) <= 0) {
      apply(gradient + at, rate * layout.lr_scale, count);
    }
    if (kept_ > 0) {
      std::memcpy(chunk.gradients + size_t{round % kept_} * layout.bytes + at, gradient + at,
                  bytes);
    }
    narrow(layout.dtype, output + at, weights.data(), count);
  }
}

}  // namespace pbox::worker
