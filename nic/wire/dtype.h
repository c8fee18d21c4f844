// The element types of payloads. The values are stable: they appear in the header's dtype field,
// which has 4 bits.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace pbox::wire {

enum class Dtype : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  // The next five occur only in jobs of collectives (collective.h).
  kI32 = 3,
  kI64 = 4,
  kU8 = 5,
  kI8 = 6,
  kF64 = 7,
  // The last two occur only on the wire, for tensors of f32: integers in blocks (blocks.h).
  kQ8 = 8,
  kQ4 = 9,
};

// The types of gradients are in [0, kDtypeCount), because tables are indexed by them.
inline constexpr uint32_t kDtypeCount = 3;
// The types of elements are in [0, kCollectiveDtypeCount).
inline constexpr uint32_t kCollectiveDtypeCount = 8;

// Returns the bytes of one element. Not for kQ8 and kQ4: see payload_bytes() in blocks.h.
constexpr uint32_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
    case Dtype::kI32: return 4;
    case Dtype::kF16:
    case Dtype::kBf16: return 2;
    case Dtype::kI64:
    case Dtype::kF64: return 8;
    case Dtype::kU8:
    case Dtype::kI8: return 1;
    case Dtype::kQ8:
    case Dtype::kQ4: break;
  }
  PBOX_DCHECK(false);
  return 1;
}

constexpr inline const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kF16: return "f16";
    case Dtype::kBf16: return "bf16";
    case Dtype::kI32: return "i32";
    case Dtype::kI64: return "i64";
    case Dtype::kU8: return "u8";
    case Dtype::kI8: return "i8";
    case Dtype::kF64: return "f64";
    case Dtype::kQ8: return "q8";
    case Dtype::kQ4: return "q4";
  }
  return "unknown";
}

}  // namespace pbox::wire
