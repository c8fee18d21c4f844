#include <array>
#include <bit>
#include <catch2/catch.hpp>

#include "base/limits.h"
#include "worker/transport/registered_memory.h"

namespace pbox::worker {
namespace {

using Catch::Contains;

// The memory at this address is never accessed.
const std::byte* at(uintptr_t address) {
  return std::bit_cast<const std::byte*>(address);
}

}  // namespace

TEST_CASE("memory is registered once and never overlaps other registered memory") {
  RegisteredMemory memory;
  REQUIRE(memory.add(at(0x2000), 0x1000));
  CHECK(memory.add(at(0x1000), 0x1000));
  CHECK(memory.add(at(0x3000), 0x1000));
  const std::array<std::array<uintptr_t, 2>, 6> overlapping = {
      {{0x2000, 0x1000}, {0x2fff, 1}, {0x2800, 0x10}, {0xfff, 2}, {0x3fff, 0x100}, {1, 0x9000}}};
  for (const auto& [address, bytes] : overlapping) {
    const Status added = memory.add(at(address), bytes);
    REQUIRE_FALSE(added.ok());
    CHECK(added.error().code == ErrorCode::kAlreadyExists);
    CHECK_THAT(added.error().message, Contains("overlap") && Contains("unregister that first"));
  }
  CHECK_THAT(memory.add(at(0x2fff), 1).error().message, Contains("4096 bytes at 0x2000"));
  memory.remove(at(0x2000));
  CHECK(memory.add(at(0x2800), 0x10));
}

TEST_CASE("an invalid region is refused with the field and its value") {
  RegisteredMemory memory;
  CHECK_THAT(memory.add(nullptr, 1).error().message, Contains("address is NULL"));
  CHECK_THAT(memory.add(at(0x1000), 0).error().message, Contains("bytes is 0"));
  CHECK_THAT(memory.add(at(0x1000), UINT64_MAX).error().message,
             Contains("correct the argument bytes"));
  CHECK_THAT(memory.check(at(0x1000)).error().message, Contains("0x1000"));
  REQUIRE(memory.add(at(0x1000), 0x1000));
  CHECK(memory.check(at(0x1000)));
  CHECK(memory.check(at(0x1001)).error().code == ErrorCode::kNotFound);
}

TEST_CASE("the number of regions is bounded, and an unregistered one makes room") {
  RegisteredMemory memory;
  for (uintptr_t piece = 1; piece <= limits::kMemoryRegionsMax; ++piece) {
    REQUIRE(memory.add(at(piece * 0x1000), 0x1000));
  }
  const Status added = memory.add(at(0x4000'0000), 1);
  REQUIRE_FALSE(added.ok());
  CHECK(added.error().code == ErrorCode::kResourceExhausted);
  CHECK_THAT(added.error().message, Contains("1024") && Contains("register larger ones"));
  memory.remove(at(0x5000));
  CHECK(memory.add(at(0x4000'0000), 1));
}

}  // namespace pbox::worker
