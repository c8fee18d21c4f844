// Block-scaled integers: how f32 values travel in 8 or 4 bits each. A block has one scale and the
// integers of its elements; an element is scale * integer. docs/protocol.md, Blocks, has the
// format; nic/quantize encodes and decodes. All functions are pure.
//
// A chunk is a sequence of whole blocks; the last one is filled up with zeros. A fragment holds
// whole blocks, so the blocks of a chunk do not depend on the size of fragments: they stay the same
// when a chunk moves to a box whose path has a smaller MTU.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/limits.h"
#include "nic/wire/dtype.h"

namespace pbox::wire {

// How the elements of a tensor are sent. Values are stable: they appear on the control connection.
enum class Compression : uint8_t { kNone = 0, kQ8 = 1, kQ4 = 2 };
inline constexpr uint32_t kCompressionCount = 3;

// Tensors with fewer elements are compressed only if the application asks for it by tensor:
// compressing them saves little, and biases and norms are sensitive to rounding.
inline constexpr uint64_t kCompressedElementsMin = 4096;

// Returns the type of the payloads of a tensor of f32.
constexpr Dtype payload_dtype(Compression compression) {
  if (compression == Compression::kQ8) return Dtype::kQ8;
  return compression == Compression::kQ4 ? Dtype::kQ4 : Dtype::kF32;
}

constexpr const char* to_string(Compression compression) {
  return compression == Compression::kNone ? "none" : to_string(payload_dtype(compression));
}

constexpr bool is_in_blocks(Dtype dtype) {
  return dtype == Dtype::kQ8 || dtype == Dtype::kQ4;
}

// The size of a block. A block begins with its scale, and the integers follow.
struct BlockLayout {
  uint32_t elements = 0;
  uint32_t scale_bytes = 0;
  uint32_t bytes = 0;
};

// kQ8: the scale is a bf16, integers are in [-127, 127], one byte each.
// kQ4: the scale is 2^(byte - 127), but 0 if the byte is 0, and NaN if it is 255. Integers are in
// [-7, 7]. Byte i after the scale has element i in its low half, and 16 + i in its high half.
constexpr BlockLayout block_layout(Dtype dtype) {
  PBOX_DCHECK(is_in_blocks(dtype));
  return dtype == Dtype::kQ8 ? BlockLayout{64, 2, 66} : BlockLayout{32, 1, 17};
}

// Returns the bytes that this number of elements takes on the wire.
constexpr uint32_t payload_bytes(Dtype dtype, uint32_t elements) {
  if (!is_in_blocks(dtype)) return elements * dtype_bytes(dtype);
  const BlockLayout layout = block_layout(dtype);
  return (elements + layout.elements - 1) / layout.elements * layout.bytes;
}

// Returns the elements that a payload has room for. It consists of whole elements, or whole blocks.
constexpr uint32_t payload_elements(Dtype dtype, uint32_t bytes) {
  if (!is_in_blocks(dtype)) return bytes / dtype_bytes(dtype);
  const BlockLayout layout = block_layout(dtype);
  return bytes / layout.bytes * layout.elements;
}

// Returns the payload bytes of each fragment of a chunk except the last, on a path whose packets
// carry at most `fragment_bytes`.
constexpr uint32_t fragment_bytes_of(Dtype dtype, uint32_t fragment_bytes) {
  if (!is_in_blocks(dtype)) return fragment_bytes;
  const uint32_t bytes = block_layout(dtype).bytes;
  PBOX_DCHECK(fragment_bytes >= bytes);
  return fragment_bytes / bytes * bytes;
}

static_assert(payload_elements(Dtype::kQ8,
                               fragment_bytes_of(Dtype::kQ8, limits::kFragmentBytesEthernet)) ==
              1344);
static_assert(payload_elements(Dtype::kQ4,
                               fragment_bytes_of(Dtype::kQ4, limits::kFragmentBytesEthernet)) ==
              2624);

}  // namespace pbox::wire
