#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "worker/protocol/result_copy.h"

namespace pbox::test {
namespace {

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t index = 0; index < bytes; ++index) out[index] = static_cast<std::byte>(index * 7 + 1);
  return out;
}

}  // namespace

TEST_CASE("a copy past the cache copies exactly the bytes at every alignment and length") {
  constexpr size_t kRoom = 1024;
  const auto source = pattern(kRoom);
  for (size_t from = 0; from < 65; from += 13) {
    for (size_t to = 0; to < 65; ++to) {
      for (const size_t bytes : {0u, 1u, 15u, 63u, 64u, 65u, 127u, 128u, 200u, 700u}) {
        std::vector<std::byte> destination(kRoom, std::byte{0xee});
        auto expected = destination;
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(to));
        worker::copy_past_cache(destination.data() + to, source.data() + from, bytes);
        INFO("from " << from << " to " << to << " bytes " << bytes);
        REQUIRE(destination == expected);
      }
    }
  }
}

}  // namespace pbox::test
