// The element types a payload may carry. Values are those of the header's dtype field (4 bits), so
// they are stable.
#pragma once

#include <cstdint>

namespace pbox::wire {

enum class Dtype : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

// Dtype values are in [0, kDtypeCount): tables are indexed by them.
inline constexpr uint32_t kDtypeCount = 3;

// Bytes of one element.
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
