#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "nic/wire/crc32c.h"

namespace pbox::wire {
namespace {

std::vector<std::byte> random_bytes(size_t count) {
  Rng rng(7);
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.next());
  return bytes;
}

}  // namespace

TEST_CASE("CRC32C gives the values of RFC 3720 appendix B.4") {
  std::vector<std::byte> ascending(32);
  for (size_t index = 0; index < 32; ++index) ascending[index] = static_cast<std::byte>(index);
  const std::string digits = "123456789";
  std::vector<std::byte> text(digits.size());
  std::memcpy(text.data(), digits.data(), digits.size());
  const struct {
    std::vector<std::byte> data;
    uint32_t crc;
  } vectors[] = {
      {std::vector<std::byte>(32, std::byte{0}), 0x8a9136aa},
      {std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43},
      {ascending, 0x46dd794e},
      {std::vector<std::byte>(ascending.rbegin(), ascending.rend()), 0x113fdb5c},
      {text, 0xe3069283},
      {{}, 0},
  };
  for (const auto& vector : vectors) {
    CHECK(crc32c(0, vector.data.data(), vector.data.size()) == vector.crc);
    CHECK(crc32c_portable(0, vector.data.data(), vector.data.size()) == vector.crc);
  }
}

TEST_CASE("the processor's CRC32C equals the table's at every length and alignment") {
  const auto bytes = random_bytes(4096 + 16);
  for (size_t offset = 0; offset < 16; ++offset) {
    for (size_t length = 0; length < 200; ++length) {
      REQUIRE(crc32c(0, bytes.data() + offset, length) ==
              crc32c_portable(0, bytes.data() + offset, length));
    }
    REQUIRE(crc32c(0, bytes.data() + offset, 4096) ==
            crc32c_portable(0, bytes.data() + offset, 4096));
  }
}

TEST_CASE("CRC32C continued over two parts equals that of the whole, wherever it is cut") {
  const auto bytes = random_bytes(100);
  const uint32_t whole = crc32c(0, bytes.data(), bytes.size());
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t first = crc32c(0, bytes.data(), cut);
    REQUIRE(crc32c(first, bytes.data() + cut, bytes.size() - cut) == whole);
    const uint32_t first_portable = crc32c_portable(0, bytes.data(), cut);
    REQUIRE(crc32c_portable(first_portable, bytes.data() + cut, bytes.size() - cut) == whole);
  }
}

}  // namespace pbox::wire
