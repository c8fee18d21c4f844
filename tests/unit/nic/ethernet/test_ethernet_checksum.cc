#include <algorithm>
#include <catch2/catch.hpp>

#include "base/rng.h"
#include "nic/ethernet/checksum.h"
#include "tests/unit/nic/ethernet/ethernet_host.h"

namespace pbox::nic {
namespace {

// Returns the sum as a number: sums are in memory order.
uint16_t sum_of(std::span<const std::byte> bytes) {
  return __builtin_bswap16(fold(sum_words(bytes)));
}

Bytes random_bytes(size_t count, Rng& rng) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

}  // namespace

TEST_CASE("the example of RFC 1071 sums to ddf2") {
  CHECK(sum_of(from_hex("0001 f203 f4f5 f6f7")) == 0xddf2);
}

TEST_CASE("the sum equals the reference for every length") {
  Rng rng(1);
  for (size_t length = 0; length < 400; ++length) {
    const Bytes bytes = random_bytes(length, rng);
    REQUIRE(sum_of(bytes) == reference_sum(bytes));
  }
}

TEST_CASE("no lane of the sum overflows for the longest packet of all ones") {
  for (const size_t length : {size_t{65535}, size_t{65536}}) {
    const Bytes bytes(length, std::byte{0xff});
    CHECK(sum_of(bytes) == reference_sum(bytes));
  }
}

TEST_CASE("the sum of pieces equals the sum of the whole") {
  Rng rng(2);
  for (int trial = 0; trial < 2000; ++trial) {
    const Bytes bytes = random_bytes(rng.next() % 300, rng);
    Checksum sum(0);
    std::span<const std::byte> left = bytes;
    while (!left.empty()) {
      const size_t taken = std::min<size_t>(left.size(), rng.next() % 40);
      sum.add(left.first(taken));
      left = left.subspan(taken);
    }
    REQUIRE(__builtin_bswap16(sum.folded()) == reference_sum(bytes));
  }
}

TEST_CASE("folding adds all carries back") {
  CHECK(fold(0) == 0);
  CHECK(fold(0xffff) == 0xffff);
  CHECK(fold(0x10000) == 1);
  CHECK(fold(0x1fffe) == 0xffff);
  CHECK(fold(0x1ffff) == 1);
  CHECK(fold(0xffff'ffff'ffff'ffff) == 0xffff);
  CHECK(fold(0xffff'ffff'0000'0001) == 1);
}

}  // namespace pbox::nic
