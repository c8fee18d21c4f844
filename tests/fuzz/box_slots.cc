#include "tests/fuzz/box_slots.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "nic/wire/chunk_layout.h"
#include "nic/wire/crc32c.h"
#include "pipeline/reduce/reference.h"

namespace pbox::fuzz {
namespace {

uint32_t drawn(uint32_t seed, uint32_t chunk, uint32_t round) {
  const std::array<uint32_t, 3> words = {seed, chunk, round};
  return wire::crc32c(7, reinterpret_cast<const std::byte*>(words.data()), sizeof(words));
}

std::vector<std::byte> values_of(wire::Dtype dtype, uint32_t bytes, uint8_t value) {
  std::vector<std::byte> payload(bytes);
  const uint32_t width = wire::dtype_bytes(dtype);
  for (uint32_t index = 0; index < bytes / width; ++index) {
    std::byte* const at = &payload[index * width];
    const int64_t integer = (int64_t{value} - 100) * (1 + index % 7);
    const double real = static_cast<double>(integer) / 8;
    const auto narrow = static_cast<float>(real);
    if (dtype == wire::Dtype::kF64) {
      std::memcpy(at, &real, sizeof(real));
    } else if (wire::is_floating_point(dtype)) {
      reduce::reference::narrow(dtype, at, &narrow, 1);
    } else {
      std::memcpy(at, &integer, width);
    }
  }
  return payload;
}

}  // namespace

Piece piece_of(const JobShape& shape, uint32_t chunk, uint32_t round) {
  const uint32_t draw = drawn(shape.seed, chunk, round);
  Piece piece;
  piece.shape.digest = drawn(draw, chunk, round);
  piece.shape.owner = static_cast<uint16_t>((draw >> 8) % shape.workers);
  const auto dtype = static_cast<wire::Dtype>(draw % wire::kCollectiveDtypeCount);
  auto combine = static_cast<wire::Combine>((draw >> 3) % wire::kCombineCount);
  if (combine == wire::Combine::kMean && !wire::is_floating_point(dtype)) {
    combine = wire::Combine::kSum;
  }
  const bool is_copied = combine == wire::Combine::kCopy;
  const uint32_t width = is_copied ? wire::dtype_bytes(dtype) : wire::combined_bytes(dtype);
  piece.bytes = (draw >> 12) % (shape.elements / width + 1) * wire::dtype_bytes(dtype);
  if (piece.bytes == 0) return piece;
  piece.shape.dtype = dtype;
  piece.shape.combine = combine;
  piece.shape.audience = static_cast<wire::Audience>(draw >> 6 & 3);
  piece.shape.fragment_count =
      static_cast<uint16_t>(wire::fragment_count(piece.bytes, kFragmentBytes));
  piece.is_owners_only = is_copied || draw >> 29 == 0;
  return piece;
}

uint32_t pushed_packets(const JobShape& shape, const Place& place) {
  if (!shape.is_collective) return shape.fragments();
  const Piece piece = piece_of(shape, place.chunk, place.round);
  return piece.has_data(place.rank) ? piece.shape.fragment_count : 1;
}

std::vector<std::byte> fill_slot_push(const JobShape& shape, const Place& place, uint8_t value,
                                      wire::Header& header) {
  const Piece piece = piece_of(shape, place.chunk, place.round);
  const bool is_empty = !piece.has_data(place.rank);
  wire::write_shape(piece.shape, is_empty, header);
  const uint32_t last = piece.shape.fragment_count - 1u;
  header.fragment = static_cast<uint16_t>(is_empty ? last : place.fragment % (last + 1));
  const uint32_t bytes =
      is_empty ? 0 : wire::fragment_length(piece.bytes, kFragmentBytes, header.fragment);
  header.payload_bytes = static_cast<uint16_t>(bytes);
  return values_of(piece.shape.dtype, bytes, value);
}

}  // namespace pbox::fuzz
