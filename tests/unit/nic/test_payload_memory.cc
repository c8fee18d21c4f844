#include <array>
#include <catch2/catch.hpp>

#include "nic/payload_memory.h"

namespace pbox::nic {

TEST_CASE("a payload is found only if one region holds all of it") {
  PayloadMemory memory;
  const std::array<std::byte, 300> bytes{};
  REQUIRE(memory.add(bytes.data(), 100, 7));
  REQUIRE(memory.add(bytes.data() + 100, 100, 8));
  CHECK(memory.find(bytes.data(), 100)->key == 7);
  CHECK(memory.find(bytes.data() + 100, 1)->key == 8);
  CHECK(memory.find(bytes.data() + 199, 1)->key == 8);
  CHECK(memory.find(bytes.data() + 99, 2) == nullptr);  // crosses both regions
  CHECK(memory.find(bytes.data() + 199, 2) == nullptr);
  CHECK(memory.find(bytes.data() + 200, 1) == nullptr);
}

TEST_CASE("removed memory is not found any more, and is released once nothing is in flight") {
  PayloadMemory memory(1);
  const std::array<std::byte, 100> bytes{};
  REQUIRE(memory.add(bytes.data(), 50));
  CHECK_FALSE(memory.add(bytes.data() + 50, 50));  // all places are taken
  PayloadMemory::Region& region = *memory.find(bytes.data(), 50);
  region.in_flight = 1;
  CHECK_FALSE(memory.remove(bytes.data()));
  CHECK(memory.find(bytes.data(), 1) == nullptr);
  CHECK_FALSE(memory.add(bytes.data() + 50, 50));
  region.in_flight = 0;
  CHECK(memory.remove(bytes.data()));
  CHECK(memory.remove(bytes.data()));
  CHECK(memory.add(bytes.data() + 50, 50));
  CHECK(memory.find(bytes.data() + 50, 50) != nullptr);
}

}  // namespace pbox::nic
