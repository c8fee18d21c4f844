#include <catch2/catch.hpp>
#include <vector>

#include "nic/wire/zeros.h"

namespace pbox::wire {

TEST_CASE("bytes are zero only if every bit of them is") {
  for (const size_t count : {0u, 1u, 7u, 63u, 64u, 65u, 128u, 1408u, 1409u}) {
    std::vector<std::byte> bytes(count + 1, std::byte{0});
    CAPTURE(count);
    CHECK(is_zero(bytes.data(), count));
    bytes[count] = std::byte{1};  // behind them
    CHECK(is_zero(bytes.data(), count));
    for (size_t at = 0; at < count; ++at) {
      bytes[at] = std::byte{0x80};
      REQUIRE_FALSE(is_zero(bytes.data(), count));
      bytes[at] = std::byte{0};
    }
  }
}

TEST_CASE("a float of -0 is not zero") {
  const float values[32] = {0, 0, -0.0f};
  CHECK_FALSE(is_zero(reinterpret_cast<const std::byte*>(values), sizeof(values)));
  CHECK(is_zero(reinterpret_cast<const std::byte*>(values + 3), sizeof(values) - 12));
}

TEST_CASE("those of a chunk's fragments that are zero are found, the short last one too") {
  constexpr uint32_t kChunkBytes = 3 * 512 + 100, kFragmentBytes = 512;
  std::vector<std::byte> bytes(kChunkBytes, std::byte{0});
  CHECK(zero_fragments(bytes.data(), kChunkBytes, kFragmentBytes, 0b1111) == 0b1111);
  CHECK(zero_fragments(bytes.data(), kChunkBytes, kFragmentBytes, 0b1010) == 0b1010);
  bytes[512 + 511] = std::byte{4};
  CHECK(zero_fragments(bytes.data(), kChunkBytes, kFragmentBytes, 0b1111) == 0b1101);
  bytes[kChunkBytes - 1] = std::byte{4};
  CHECK(zero_fragments(bytes.data(), kChunkBytes, kFragmentBytes, 0b1111) == 0b0101);
  CHECK(bytes_of_fragments(kChunkBytes, kFragmentBytes, 0b1001) == 612);
  CHECK(bytes_of_fragments(kChunkBytes, kFragmentBytes, 0) == 0);
}

namespace {

uint64_t read(uint64_t mask, uint16_t fragment, uint64_t full_mask, uint16_t bytes = 8) {
  Parsed parsed;
  parsed.header.set_type(PacketType::kZeros);
  parsed.header.payload_bytes = bytes;
  parsed.header.fragment = fragment;
  parsed.payload = reinterpret_cast<const std::byte*>(&mask);
  return read_zeros(parsed, full_mask);
}

}  // namespace

TEST_CASE("a packet of zeros names fragments of its chunk, the lowest in its header too") {
  CHECK(read(0b110, 1, 0b111) == 0b110);
  CHECK(read(uint64_t{1} << 63, 63, ~uint64_t{0}) == uint64_t{1} << 63);
  CHECK(read(0, 0, 0b111) == 0);
  CHECK(read(0, 64, 0b111) == 0);
  CHECK(read(0b1110, 1, 0b111) == 0);  // beyond the chunk
  CHECK(read(0b110, 2, 0b111) == 0);
  CHECK(read(0b110, 0, 0b111) == 0);
  CHECK(read(0b110, 1, 0b111, 7) == 0);
  CHECK(read(0b110, 1, 0b111, 16) == 0);
}

}  // namespace pbox::wire
