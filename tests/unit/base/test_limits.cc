// limits.h asserts how its bounds relate. What it cannot assert there, because it follows from a
// bound together with a field of the wire or with the kernel, is checked here.
#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>

#include "base/limits.h"

namespace pbox::limits {
namespace {

template <typename Field>
constexpr bool fits(uint64_t bound) {
  return bound <= std::numeric_limits<Field>::max();
}

TEST_CASE("what a header field must say fits into the field") {
  CHECK(fits<uint16_t>(kFragmentBytesMax));                   // len
  CHECK(fits<uint16_t>(kFragmentCountMax));                   // frag
  CHECK(fits<uint32_t>(kChunksPerJobMax));                    // chunk
  CHECK(fits<uint16_t>(kCreditBytesMax / kCreditUnitBytes));  // credit
  CHECK(kWireVersion < 16);                                   // version:4
}

TEST_CASE("a packet fits unfragmented into the path its fragment size was chosen for") {
  constexpr uint32_t kIpv4Bytes = 20 + 8 + kPacketOverheadBytes;
  constexpr uint32_t kIpv6Bytes = 40 + 8 + kPacketOverheadBytes;
  CHECK(kFragmentBytesEthernet + kIpv4Bytes <= 1500);
  CHECK(kFragmentBytesJumbo + kIpv6Bytes <= 9000);
  CHECK(kFragmentBytesLoopback + kIpv6Bytes <= 65536);
  CHECK(kFragmentBytesMin + kIpv6Bytes <= 1280);  // the least MTU that IPv6 allows
}

TEST_CASE("one 64-bit mask covers every fragment of a chunk on every path") {
  CHECK(kFragmentCountMax == std::numeric_limits<uint64_t>::digits);
  for (const uint32_t fragment_bytes :
       {kFragmentBytesMin, kFragmentBytesEthernet, kFragmentBytesJumbo, kFragmentBytesLoopback}) {
    CHECK((kChunkBytesDefault + fragment_bytes - 1) / fragment_bytes <= kFragmentCountMax);
    CHECK(fragment_bytes % sizeof(float) == 0);
  }
  CHECK(kChunkBytesMin <= kChunkBytesDefault);
  CHECK(kChunkBytesDefault <= kChunkBytesMax);
}

TEST_CASE("the largest job still has room for the largest model in default chunks") {
  // VGG-19 has 143,667,240 parameters: the widest of the benchmark models, twenty times over.
  constexpr uint64_t kModelBytes = 20ull * 143'667'240 * sizeof(float);
  CHECK(kModelBytes / kChunkBytesDefault < kChunksPerJobMax);
}

TEST_CASE("credit covers at least one chunk of the widest kind") {
  CHECK(kCreditBytesMax >= kChunkBytesMax);
}

TEST_CASE("the ports outsiders rely on lie side by side") {
  CHECK(kControlPort == kAdminPort + 1);
  CHECK(kDataPortFirst == kControlPort + 1);
  CHECK(fits<uint16_t>(uint64_t{kDataPortFirst} + kPipelinesMax));
}

}  // namespace
}  // namespace pbox::limits
