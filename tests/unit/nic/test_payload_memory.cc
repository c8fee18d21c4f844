#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

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

TEST_CASE("a region whose begin is not set holds no payload") {
  const std::array<std::byte, 100> bytes{};
  PayloadMemory::Region region;
  region.end = bytes.data() + 100;  // as the polling thread may see it while a region is added
  CHECK_FALSE(region.contains(bytes.data(), 1));
  CHECK_FALSE(region.contains(nullptr, 0));
}

TEST_CASE("a payload below a region is not found while that region comes and goes") {
  PayloadMemory memory(1);
  const std::array<std::byte, 300> bytes{};
  std::atomic<bool> ends{false};
  std::thread control([&] {
    for (int turn = 0; turn < 200'000; ++turn) {
      const std::byte* begin = bytes.data() + (turn % 2 == 0 ? 100 : 200);
      memory.add(begin, 100);
      memory.remove(begin);
    }
    ends = true;
  });
  size_t found = 0;
  while (!ends) found += memory.find(bytes.data(), 1) != nullptr ? 1 : 0;
  control.join();
  CHECK(found == 0);
}

}  // namespace pbox::nic
