// limits.h asserts how its bounds relate. This test checks how they relate to fields of the wire
// format and to properties of networks, which limits.h does not know.
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

TEST_CASE("every bound fits into the header field that carries it") {
  CHECK(fits<uint16_t>(kFragmentBytesMax));                   // payload_bytes
  CHECK(fits<uint16_t>(kFragmentCountMax));                   // fragment
  CHECK(fits<uint32_t>(kChunksPerJobMax));                    // chunk
  CHECK(fits<uint16_t>(kCreditBytesMax / kCreditUnitBytes));  // credit
  CHECK(kWireVersion < 16);                                   // 4 bits
}

TEST_CASE("a packet fits the path that its fragment size is meant for, without IP fragmentation") {
  constexpr uint32_t kIpv4Bytes = 20 + 8 + kPacketOverheadBytes;
  constexpr uint32_t kIpv6Bytes = 40 + 8 + kPacketOverheadBytes;
  CHECK(kFragmentBytesEthernet + kIpv4Bytes <= 1500);
  CHECK(kFragmentBytesJumbo + kIpv6Bytes <= 9000);
  CHECK(kFragmentBytesLoopback + kIpv6Bytes <= 65536);
  CHECK(kFragmentBytesMin + kIpv6Bytes <= 1280);  // IPv6's minimum MTU
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

TEST_CASE("a job can hold a model twenty times as large as VGG-19 in default chunks") {
  // VGG-19, the largest of the benchmark models, has 143,667,240 parameters.
  constexpr uint64_t kModelBytes = 20ull * 143'667'240 * sizeof(float);
  CHECK(kModelBytes / kChunkBytesDefault < kChunksPerJobMax);
}

TEST_CASE("credit covers at least one chunk of the largest size") {
  CHECK(kCreditBytesMax >= kChunkBytesMax);
}

TEST_CASE("the well-known ports are consecutive") {
  CHECK(kControlPort == kAdminPort + 1);
  CHECK(kDataPortFirst == kControlPort + 1);
  CHECK(fits<uint16_t>(uint64_t{kDataPortFirst} + kPipelinesMax));
}

}  // namespace
}  // namespace pbox::limits
