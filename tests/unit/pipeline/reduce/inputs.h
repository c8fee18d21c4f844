// Difficult inputs: every class of float, odd lengths, unaligned payloads.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <vector>

#include "base/rng.h"
#include "nic/wire/dtype.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::test {

inline constexpr wire::Dtype kDtypes[] = {wire::Dtype::kF32, wire::Dtype::kF16, wire::Dtype::kBf16};

// Lengths below, at and above the vector widths and unrolled loops of every target, and a fragment.
inline constexpr size_t kCounts[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,
                                     32, 33, 63, 64, 65, 100, 127, 128, 129, 352, 1023};

// Zeros, denormals, the limits of half precision, overflow of f16 and bf16, infinities, quiet and
// signalling NaNs.
inline constexpr uint32_t kHardFloats[] = {
    0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000, 0x33000000, 0x33000001, 0x337fffff,
    0x33800000, 0x33c00000, 0x387fc000, 0x387fe000, 0x38800000, 0x3f800000, 0x3f801000, 0x3f803000,
    0x3f808000, 0x3f818000, 0x3f801001, 0xbf7fffff, 0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000,
    0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
    0xffc12345, 0x7f800001, 0xff801000, 0x7fbfffff, 0x7fffffff};

inline constexpr uint16_t kHardHalves[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0xbc01,
                                           0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfdff,
                                           0x7f7f, 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffff, 0x007f};

// A zeroed array whose start is at the given distance from a 64-byte boundary. It ends where its
// heap block ends, so a sanitizer build sees each byte that is read past the end.
template <typename T>
class Array {
 public:
  explicit Array(size_t count, size_t misalignment = 0)
      : count_(count), offset_(misalignment), block_(allocate(count * sizeof(T) + misalignment)) {}

  T* data() { return reinterpret_cast<T*>(block_.get() + offset_); }
  T& operator[](size_t index) { return data()[index]; }
  size_t size() const { return count_; }

 private:
  struct Free {
    void operator()(std::byte* block) const { ::operator delete (block, std::align_val_t{64}); }
  };
  static std::byte* allocate(size_t bytes) {
    void* block = ::operator new (bytes, std::align_val_t{64});
    return static_cast<std::byte*>(std::memset(block, 0, bytes));
  }

  size_t count_;
  size_t offset_;
  std::unique_ptr<std::byte, Free> block_;
};

// Ordinary values of mixed magnitude. If requested, every third is a difficult one.
inline std::vector<float> floats(size_t count, uint64_t seed, bool hard) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const double exponent = 40.0 * rng.unit() - 25.0;
    values[i] = static_cast<float>((rng.unit() - 0.5) * std::exp2(exponent));
    if (hard && i % 3 == 0) {
      values[i] = std::bit_cast<float>(kHardFloats[rng.below(std::size(kHardFloats))]);
    }
  }
  return values;
}

// Fills `bytes` with a payload of `count` elements. If requested, every other one is difficult.
inline void fill_payload(wire::Dtype dtype, std::byte* bytes, size_t count, uint64_t seed,
                         bool hard) {
  Rng rng(seed);
  if (dtype == wire::Dtype::kF32) {
    const auto values = floats(count, seed, hard);
    if (count != 0) std::memcpy(bytes, values.data(), count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    // Exponents from the middle of the range, or any bits.
    uint16_t half = static_cast<uint16_t>(0x3000 + rng.below(0x1000) + (rng.below(2) << 15));
    if (hard && i % 2 == 0) half = kHardHalves[rng.below(std::size(kHardHalves))];
    std::memcpy(bytes + i * sizeof half, &half, sizeof half);
  }
}

inline std::vector<uint32_t> bits(const float* values, size_t count) {
  std::vector<uint32_t> out(count);
  if (count != 0) std::memcpy(out.data(), values, count * sizeof(float));
  return out;
}

}  // namespace pbox::test
