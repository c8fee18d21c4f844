// The element types of payloads. The values are stable: they appear in the header's dtype field,
// which has 4 bits.
#pragma once

#include <cstdint>

namespace pbox::wire {

enum class Dtype : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

// Dtype values are in [0, kDtypeCount), because tables are indexed by them.
inline constexpr uint32_t kDtypeCount = 3;

// Returns the bytes of one element.
constexpr uint32_t dtype_bytes(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : 2;
}

constexpr inline const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kF16: return "f16";
    case Dtype::kBf16: return "bf16";
  }
  return "unknown";
}

}  // namespace pbox::wire
