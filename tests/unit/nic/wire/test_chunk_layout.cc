#include <catch2/catch.hpp>

#include "nic/wire/chunk_layout.h"
#include "nic/wire/header.h"

namespace pbox::wire {

TEST_CASE("the fragment size depends on the path's MTU and address family") {
  const struct {
    uint32_t mtu;
    bool ipv6;
    uint32_t payload;
  } rows[] = {
      {1500, false, 1408},   {1500, true, 1344},    {9000, false, 8192},  {9000, true, 8192},
      {65536, false, 32768}, {65536, true, 32768},  {1280, false, 1152},  {1280, true, 1152},
      {576, false, 0},       {575, false, 0},       {575, true, 0},       {0, false, 0},
      {595, false, 0},       {596, false, 512},     {615, true, 0},       {616, true, 512},
      {1491, false, 1344},   {1492, false, 1408},   {8275, false, 1408},  {8276, false, 8192},
      {8296, true, 8192},    {32852, false, 32768}, {32851, false, 8192}, {32872, true, 32768},
  };
  for (const auto& row : rows) {
    INFO("mtu " << row.mtu << " ipv6 " << row.ipv6);
    const uint32_t payload = fragment_bytes_for_mtu(row.mtu, row.ipv6);
    CHECK(payload == row.payload);
  }
}

TEST_CASE("for every MTU a packet fits the path and splits no element") {
  for (uint32_t mtu = 0; mtu <= 65536; ++mtu) {
    for (const bool ipv6 : {false, true}) {
      const uint32_t payload = fragment_bytes_for_mtu(mtu, ipv6);
      if (payload == 0) continue;
      REQUIRE(payload + limits::kPacketOverheadBytes + (ipv6 ? 48 : 28) <= mtu);
      REQUIRE(payload % 64 == 0);
      REQUIRE(payload >= limits::kFragmentBytesMin);
      REQUIRE(fragment_count(limits::kChunkBytesDefault, payload) <= limits::kFragmentCountMax);
    }
  }
}

TEST_CASE(
    "all fragments of a chunk except the last are full, and together they make up the chunk") {
  CHECK(fragment_count(32768, 1408) == 24);
  CHECK(fragment_length(32768, 1408, 0) == 1408);
  CHECK(fragment_length(32768, 1408, 23) == 32768 - 23 * 1408);
  CHECK(fragment_count(8192, 8192) == 1);
  CHECK(fragment_length(8192, 8192, 0) == 8192);
  CHECK(fragment_count(8196, 8192) == 2);
  CHECK(fragment_length(8196, 8192, 1) == 4);
  for (const uint32_t fragment_bytes : {512u, 1344u, 1408u, 8192u}) {
    for (uint32_t chunk_bytes = 4; chunk_bytes <= 32768; chunk_bytes += 4) {
      const uint32_t count = fragment_count(chunk_bytes, fragment_bytes);
      uint32_t total = 0;
      for (uint32_t index = 0; index < count; ++index) {
        const uint32_t length = fragment_length(chunk_bytes, fragment_bytes, index);
        if (length == 0 || (index + 1 < count && length != fragment_bytes))
          FAIL("a fragment other than the last has another length than fragment_bytes");
        total += length;
      }
      REQUIRE(total == chunk_bytes);
    }
  }
}

TEST_CASE("only the last chunk of a tensor may be shorter") {
  CHECK(chunk_count(0, 32768) == 0);
  CHECK(chunk_count(1, 32768) == 1);
  CHECK(chunk_count(32768, 32768) == 1);
  CHECK(chunk_count(32769, 32768) == 2);
  CHECK(chunk_count(uint64_t{1} << 40, 32768) == uint64_t{1} << 25);
}

TEST_CASE("a full mask has one bit per fragment, up to all 64") {
  CHECK(full_mask(1) == 1);
  CHECK(full_mask(2) == 3);
  CHECK(full_mask(63) == 0x7fffffffffffffff);
  CHECK(full_mask(64) == 0xffffffffffffffff);
}

TEST_CASE("rounds are compared as serial numbers, also when they wrap") {
  CHECK(round_distance(5, 3) == 2);
  CHECK(round_distance(3, 5) == -2);
  CHECK(round_distance(0, 0xffffffff) == 1);
  CHECK(round_distance(0xffffffff, 0) == -1);
  CHECK(round_distance(0x7fffffff, 0xffffffff) < 0);
  CHECK(round_distance(0x7ffffffe, 0xffffffff) == 0x7fffffff);
}

TEST_CASE("an spi has its index below the direction bit") {
  CHECK(spi_index(0x5a000fff) == 0xfff);
  CHECK(spi_index(0x5a001fff) == 0xfff);
  CHECK((kSpiToWorker & kSpiIndexMask) == 0);
}

}  // namespace pbox::wire
