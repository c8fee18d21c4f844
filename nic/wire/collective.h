// Jobs of collectives. Their tensors are slots: memory that each round uses for a different
// operation. An operation takes the next free slots, in the order of the calls, so all ranks use
// the same slot and round for it. Each PUSH and STATE states the shape of its round (RoundShape).
// The box takes the shape from the first packet, and compares all others with it.
//
// The shape travels in header fields that other jobs need and these do not: the digest in
// timestamp_us, audience and owner in credit, the rest in dtype_scale.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/dtype.h"
#include "nic/wire/header.h"

namespace pbox::wire {

// The calls of the C ABI (pbox_verb).
enum class Verb : uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
  kBarrier = 4,
};
inline constexpr const char* kVerbNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                             "broadcast", "barrier"};
// True if the verb combines values of the ranks. Other verbs only move data.
constexpr bool reduces(Verb verb) {
  return verb == Verb::kAllReduce || verb == Verb::kReduceScatter;
}

// The way in which the box combines the pushes of a round. The first four are pbox_op of the C ABI.
enum class Combine : uint8_t {
  kSum = 0,
  kMean = 1,  // only for floating-point types
  kMin = 2,   // if any rank has a NaN, the result is NaN
  kMax = 3,
  kCopy = 4,  // one rank pushes data, the others push without data
};
inline constexpr uint32_t kCombineCount = 5;
inline constexpr const char* kCombineNames[] = {"sum", "mean", "min", "max", "copy"};

constexpr bool is_floating_point(Dtype dtype) {
  return dtype <= Dtype::kBf16 || dtype == Dtype::kF64;
}
// Returns the bytes that the box needs to combine one element. It widens f16 and bf16 to f32.
constexpr uint32_t combined_bytes(Dtype dtype) {
  return dtype == Dtype::kF16 || dtype == Dtype::kBf16 ? 4 : dtype_bytes(dtype);
}

// The ranks that get a round's result. The others are told that the round is finished.
enum class Audience : uint8_t {
  kAll = 0,
  kOwner = 1,        // reduce_scatter
  kAllButOwner = 2,  // the owner has pushed the result itself
  kNobody = 3,       // barrier
};

struct RoundShape {
  uint32_t digest = 0;  // identifies the operation, and the piece that this round carries
  Dtype dtype = Dtype::kU8;
  Combine combine = Combine::kCopy;
  Audience audience = Audience::kNobody;
  uint16_t owner = 0;           // the rank that Audience calls the owner
  uint16_t fragment_count = 1;  // in [1, limits::kFragmentCountMax]

  bool operator==(const RoundShape&) const = default;
  bool is_sent_to(uint32_t rank) const {
    switch (audience) {
      case Audience::kAll: return true;
      case Audience::kOwner: return rank == owner;
      case Audience::kAllButOwner: return rank != owner;
      case Audience::kNobody: return false;
    }
    return false;
  }
};

namespace shape_bits {
inline constexpr uint32_t kCombineShift = 4;
inline constexpr uint32_t kFragmentsShift = 7;
inline constexpr uint32_t kEmpty = 1u << 13;  // the rank has no data for this round
inline constexpr uint32_t kReserved = 3u << 14;
inline constexpr uint32_t kAudienceShift = 14;
inline constexpr uint32_t kOwnerMask = (1u << kAudienceShift) - 1;
}  // namespace shape_bits

static_assert(limits::kWorkersPerJobMax <= shape_bits::kOwnerMask + 1);
static_assert(limits::kFragmentCountMax <= 64);

// Writes the shape. `is_empty`: the push has no payload, and counts as a push of all fragments.
inline void write_shape(const RoundShape& shape, bool is_empty, Header& header) {
  PBOX_DCHECK(shape.fragment_count >= 1 && shape.fragment_count <= limits::kFragmentCountMax);
  PBOX_DCHECK(shape.owner <= shape_bits::kOwnerMask);
  header.timestamp_us = shape.digest;
  header.credit = static_cast<uint16_t>(
      static_cast<uint32_t>(shape.audience) << shape_bits::kAudienceShift | shape.owner);
  header.dtype_scale =
      static_cast<uint16_t>(static_cast<uint32_t>(shape.dtype) |
                            static_cast<uint32_t>(shape.combine) << shape_bits::kCombineShift |
                            (shape.fragment_count - 1u) << shape_bits::kFragmentsShift |
                            (is_empty ? shape_bits::kEmpty : 0u));
}

inline bool is_empty_push(const Header& header) {
  return (header.dtype_scale & shape_bits::kEmpty) != 0;
}

// Returns false if the header has no valid shape. The caller checks that the owner is a rank.
inline bool read_shape(const Header& header, RoundShape& shape) {
  const uint32_t bits = header.dtype_scale;
  const uint32_t dtype = bits & 15;
  const uint32_t combine = bits >> shape_bits::kCombineShift & 7;
  if (dtype >= kCollectiveDtypeCount || combine >= kCombineCount) return false;
  if ((bits & shape_bits::kReserved) != 0) return false;
  shape.digest = header.timestamp_us;
  shape.dtype = static_cast<Dtype>(dtype);
  shape.combine = static_cast<Combine>(combine);
  shape.audience = static_cast<Audience>(header.credit >> shape_bits::kAudienceShift);
  shape.owner = static_cast<uint16_t>(header.credit & shape_bits::kOwnerMask);
  shape.fragment_count = static_cast<uint16_t>((bits >> shape_bits::kFragmentsShift & 63) + 1);
  return shape.combine != Combine::kMean || is_floating_point(shape.dtype);
}

}  // namespace pbox::wire
