#include <catch2/catch.hpp>

#include "nic/wire/blocks.h"
#include "nic/wire/chunk_layout.h"

using namespace pbox;
using namespace pbox::wire;

TEST_CASE("a payload of blocks has whole blocks, the last one with room for more") {
  CHECK(payload_bytes(Dtype::kQ8, 64) == 66);
  CHECK(payload_bytes(Dtype::kQ8, 65) == 132);
  CHECK(payload_bytes(Dtype::kQ8, 1) == 66);
  CHECK(payload_bytes(Dtype::kQ4, 32) == 17);
  CHECK(payload_bytes(Dtype::kQ4, 33) == 34);
  CHECK(payload_bytes(Dtype::kBf16, 33) == 66);
  CHECK(payload_elements(Dtype::kQ8, 132) == 128);
  CHECK(payload_elements(Dtype::kQ4, 34) == 64);
  CHECK(payload_elements(Dtype::kF32, 34 * 4) == 34);
}

TEST_CASE("no block lies in two fragments, on any path") {
  for (const Dtype dtype : {Dtype::kQ8, Dtype::kQ4}) {
    for (uint32_t path = limits::kFragmentBytesMin; path <= limits::kFragmentBytesMax; path += 64) {
      const uint32_t bytes = fragment_bytes_of(dtype, path);
      REQUIRE(bytes % block_layout(dtype).bytes == 0);
      REQUIRE(bytes <= path);
      REQUIRE(path - bytes < block_layout(dtype).bytes);
    }
  }
  CHECK(fragment_bytes_of(Dtype::kF32, 1408) == 1408);
}

TEST_CASE("a chunk in blocks never has more fragments than the same chunk of f32") {
  for (const Dtype dtype : {Dtype::kQ8, Dtype::kQ4}) {
    for (const uint32_t path : {512u, 576u, 1408u, 8192u, 32768u}) {
      for (uint32_t elements = 1; elements <= 64 * path / 4; elements += 97) {
        const uint32_t bytes = payload_bytes(dtype, elements);
        REQUIRE(fragment_count(bytes, fragment_bytes_of(dtype, path)) <=
                fragment_count(elements * 4, path));
      }
    }
  }
}

TEST_CASE("a compression has a payload type and a name") {
  CHECK(payload_dtype(Compression::kNone) == Dtype::kF32);
  CHECK(payload_dtype(Compression::kQ8) == Dtype::kQ8);
  CHECK(payload_dtype(Compression::kQ4) == Dtype::kQ4);
  CHECK(std::string(to_string(Compression::kNone)) == "none");
  CHECK(std::string(to_string(Compression::kQ4)) == "q4");
}
