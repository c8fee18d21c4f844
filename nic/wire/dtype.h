// Element types on the wire.
#pragma once

#include <cstdint>

namespace pbox::wire {

// Values travel in the header's dtype field and in control messages.
enum class Dtype : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

inline constexpr uint8_t kDtypeCount = 3;

constexpr uint32_t dtype_bytes(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : 2;
}

constexpr const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kF16: return "f16";
    case Dtype::kBf16: return "bf16";
  }
  return "unknown";
}

}  // namespace pbox::wire
