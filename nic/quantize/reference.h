// The definition of every operation of quantize.h, block by block. It is written to be read. The
// results of the vector kernels equal its results bit for bit. The kernels use it for a last block
// that is not full.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "nic/quantize/rounding.h"
#include "nic/wire/blocks.h"
#include "nic/wire/half.h"

namespace pbox::quantize::reference {

// The largest integer of a block.
constexpr float integer_max(wire::Dtype dtype) {
  return dtype == wire::Dtype::kQ8 ? 127.0f : 7.0f;
}

// A block whose largest magnitude is below this is sent as zeros; its values stay in the residue.
// So neither a scale nor its inverse is a denormal.
inline constexpr uint32_t kTinyBits = (127u - 100u) << 23;  // 2^-100
// A block with a larger magnitude is sent as NaNs, because scale times integer could overflow. So
// is a block with an infinity or a NaN.
inline constexpr uint32_t kHugeBits = (127u + 120u) << 23;  // 2^120

constexpr uint32_t magnitude_bits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

enum class BlockKind : uint8_t { kZero, kNan, kScaled };

// The scale of a block, in the forms that the encoder needs.
struct Scale {
  BlockKind kind = BlockKind::kZero;
  uint32_t coded = 0;  // as it is sent
  float value = 0;
  float inverse = 0;
};

// Returns the scale of a block. `largest`: the bits of the largest magnitude in the block, as an
// integer; those of a NaN are larger than those of any number.
inline Scale scale_of(wire::Dtype dtype, uint32_t largest) {
  const bool is_q8 = dtype == wire::Dtype::kQ8;
  if (largest < kTinyBits) return {};
  if (largest > kHugeBits) return {.kind = BlockKind::kNan, .coded = is_q8 ? 0x7fc0u : 255u};
  const auto least = std::bit_cast<uint32_t>(std::bit_cast<float>(largest) / integer_max(dtype));
  Scale scale{.kind = BlockKind::kScaled};
  if (is_q8) {  // rounds up to the next bf16
    scale.coded = (least + 0xffffu) >> 16;
    scale.value = std::bit_cast<float>(scale.coded << 16);
  } else {  // rounds up to the next power of two
    scale.coded = (least + 0x7fffffu) >> 23;
    scale.value = std::bit_cast<float>(scale.coded << 23);
  }
  scale.inverse = 1.0f / scale.value;
  return scale;
}

inline void put_scale(wire::Dtype dtype, std::byte* block, uint32_t coded) {
  block[0] = static_cast<std::byte>(coded & 0xffu);
  if (dtype == wire::Dtype::kQ8) block[1] = static_cast<std::byte>(coded >> 8);
}

inline float get_scale(wire::Dtype dtype, const std::byte* block) {
  const auto first = std::to_integer<uint32_t>(block[0]);
  if (dtype == wire::Dtype::kQ8) {
    return std::bit_cast<float>((std::to_integer<uint32_t>(block[1]) << 8 | first) << 16);
  }
  return std::bit_cast<float>(first == 255u ? 0x7fc00000u : first << 23);
}

inline void put_integer(wire::Dtype dtype, std::byte* block, uint32_t index, int32_t integer) {
  const wire::BlockLayout layout = wire::block_layout(dtype);
  std::byte* const integers = block + layout.scale_bytes;
  if (dtype == wire::Dtype::kQ8) {
    integers[index] = static_cast<std::byte>(integer);
    return;
  }
  const uint32_t half = layout.elements / 2;
  std::byte& pair = integers[index % half];
  const auto bits = static_cast<std::byte>(integer & 15);
  pair = index < half ? (pair & std::byte{0xf0}) | bits : (pair & std::byte{0x0f}) | bits << 4;
}

inline int32_t get_integer(wire::Dtype dtype, const std::byte* block, uint32_t index) {
  const wire::BlockLayout layout = wire::block_layout(dtype);
  const std::byte* const integers = block + layout.scale_bytes;
  if (dtype == wire::Dtype::kQ8) return static_cast<int8_t>(integers[index]);
  const uint32_t half = layout.elements / 2;
  const auto pair = std::to_integer<uint32_t>(integers[index % half]);
  const uint32_t bits = index < half ? pair & 15u : pair >> 4;
  return static_cast<int32_t>(bits ^ 8u) - 8;  // the sign is its highest bit
}

// Rounds to one of the two nearest integers, so that the mean over all draws is the value. An
// element in the first half of a block takes the low half of a random number. The element half a
// block later takes the high half of the same number.
inline float rounded(wire::Dtype dtype, float value, const Scale& scale, RoundingKey key,
                     uint32_t block, uint32_t index) {
  const uint32_t half = wire::block_layout(dtype).elements / 2;
  const uint32_t bits = random_bits(key, block * half + index % half);
  const auto draw = static_cast<float>(index < half ? bits & 0xffffu : bits >> 16) * 0x1.0p-16f;
  const float most = integer_max(dtype);
  const float exact = std::min(std::max(value * scale.inverse, -most), most);
  // The sum is at most `most` + 1 - 2^-16, which f32 represents, so its floor is at most `most`.
  return std::floor(exact + draw);
}

// Encodes one block of `count` values, filled up with zeros.
inline void encode_block(wire::Dtype dtype, std::byte* to, const float* values, float* residue,
                         uint32_t count, RoundingKey key, uint32_t block) {
  const wire::BlockLayout layout = wire::block_layout(dtype);
  PBOX_DCHECK(count > 0 && count <= layout.elements);
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    largest = std::max(largest, magnitude_bits(values[i] + residue[i]));
  }
  const Scale scale = scale_of(dtype, largest);
  std::memset(to, 0, layout.bytes);
  put_scale(dtype, to, scale.coded);
  if (scale.kind == BlockKind::kNan) return;  // the residue stays as it is
  for (uint32_t i = 0; i < count; ++i) {
    const float value = values[i] + residue[i];
    residue[i] = value;
    if (scale.kind == BlockKind::kZero) continue;
    const float integer = rounded(dtype, value, scale, key, block, i);
    put_integer(dtype, to, i, static_cast<int32_t>(integer));
    residue[i] = value - scale.value * integer;
  }
}

inline void encode(wire::Dtype dtype, std::byte* to, const float* values, float* residue,
                   size_t count, RoundingKey key) {
  const wire::BlockLayout layout = wire::block_layout(dtype);
  for (uint32_t block = 0; size_t{block} * layout.elements < count; ++block) {
    const size_t first = size_t{block} * layout.elements;
    encode_block(dtype, to + size_t{block} * layout.bytes, values + first, residue + first,
                 static_cast<uint32_t>(std::min<size_t>(layout.elements, count - first)), key,
                 block);
  }
}

// Returns element `index` of a payload of whole blocks.
inline float load_element(wire::Dtype dtype, const std::byte* source, size_t index) {
  const wire::BlockLayout layout = wire::block_layout(dtype);
  const std::byte* block = source + index / layout.elements * layout.bytes;
  const auto within = static_cast<uint32_t>(index % layout.elements);
  return get_scale(dtype, block) * static_cast<float>(get_integer(dtype, block, within));
}

// Decodes elements into the accumulator. Does for blocks what store(), add(), store_sound() and
// add_sound() of pipeline/reduce/reference.h do for elements of other types. Returns true if all
// elements are sound.
inline bool accumulate(wire::Dtype dtype, float* accumulator, const std::byte* source, size_t count,
                       float limit, bool adds, bool zeroes) {
  bool are_sound = true;
  for (size_t i = 0; i < count; ++i) {
    float value = load_element(dtype, source, i);
    const bool is_sound = std::fabs(value) <= limit;
    are_sound = are_sound && is_sound;
    if (zeroes && !is_sound) value = 0.0f;
    accumulator[i] = adds ? accumulator[i] + value : value;
  }
  return are_sound;
}

}  // namespace pbox::quantize::reference
