#include <catch2/catch.hpp>

#include "nic/wire/landing.h"

namespace pbox::wire {
namespace {

constexpr uint32_t kSlotBytes = limits::kPacketBytesMax;

uint32_t bits(uint32_t slot, uint32_t bytes) {
  return pack({static_cast<uint16_t>(slot), static_cast<uint16_t>(bytes)});
}

}  // namespace

TEST_CASE("an immediate holds any slot and length") {
  for (const uint32_t slot : {0u, 1u, 255u, kLandingSlotsMax - 1}) {
    for (const uint32_t bytes : {0u, 56u, kSlotBytes, uint32_t{UINT16_MAX}}) {
      const Immediate read = unpack_immediate(bits(slot, bytes));
      CHECK(read.slot == slot);
      CHECK(read.bytes == bytes);
    }
  }
  CHECK(pack({.slot = 0x1234, .bytes = 0x5678}) == 0x12345678);
}

TEST_CASE("an immediate for the next slot with a length that fits is accepted") {
  CHECK(landed_bytes(bits(0, 56), 0, kSlotBytes) == 56);
  CHECK(landed_bytes(bits(240, kSlotBytes), 240, kSlotBytes) == kSlotBytes);
  // A packet too short for a header is dropped by the pipeline, as from any port.
  CHECK(landed_bytes(bits(3, 0), 3, kSlotBytes) == 0);
}

TEST_CASE("an immediate for another slot or with too large a length is refused") {
  CHECK(!landed_bytes(bits(1, 56), 0, kSlotBytes));
  CHECK(!landed_bytes(bits(0, 56), 1, kSlotBytes));
  CHECK(!landed_bytes(bits(UINT16_MAX, 56), 7, kSlotBytes));
  CHECK(!landed_bytes(bits(7, kSlotBytes + 1), 7, kSlotBytes));
  CHECK(!landed_bytes(UINT32_MAX, 7, kSlotBytes));
  CHECK(!landed_bytes(UINT32_MAX, UINT16_MAX, kSlotBytes));
}

}  // namespace pbox::wire
