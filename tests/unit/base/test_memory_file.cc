#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>

#include "base/memory_file.h"
#include "base/numa_arena.h"

namespace pbox {
namespace {

constexpr size_t kFileBytes = 64 << 10;

Descriptor sealed_file(bool may_shrink = false) {
  auto file = make_memory_file("pbox-test", kFileBytes);
  REQUIRE(file.ok());
  REQUIRE(seal_memory_file(*file, may_shrink).ok());
  return std::move(*file);
}

std::string refusal_of(const Descriptor& file, size_t bytes) {
  const auto mapped = map_memory_file(file, bytes, "the other's memory");
  REQUIRE_FALSE(mapped.ok());
  CHECK(mapped.error().code == ErrorCode::kInvalidArgument);
  return mapped.error().message;
}

}  // namespace

TEST_CASE("a sealed file of memory can be mapped to read only, and keeps its size") {
  const Descriptor file = sealed_file();
  const auto mapped = map_memory_file(file, kFileBytes, "the other's memory");
  REQUIRE(mapped.ok());
  CHECK(mapped->size() == kFileBytes);
  CHECK(mapped->data()[kFileBytes - 1] == std::byte{0});
  CHECK(mprotect(mapped->data(), 4096, PROT_READ | PROT_WRITE) == -1);
  CHECK(ftruncate(file.get(), 0) == -1);
  CHECK(ftruncate(file.get(), 2 * kFileBytes) == -1);
}

TEST_CASE("a file that could shrink, is too small or is none of memory is refused") {
  const std::string shrinks = refusal_of(sealed_file(true), kFileBytes);
  CHECK(shrinks == "the other's memory may shrink; it must have the seal F_SEAL_SHRINK");
  CHECK(refusal_of(sealed_file(), kFileBytes + 1) ==
        "the other's memory has 65536 bytes, fewer than the 65537 that it must have");
  const Descriptor other(open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK(refusal_of(other, 1) == "the other's memory is not a file of memfd_create()");
}

TEST_CASE("a file in hugepages is refused unless its maker is trusted") {
  constexpr size_t kHugepageBytes = 2 << 20;
  const auto file = make_memory_file("pbox-test", kHugepageBytes, MFD_HUGETLB | MFD_HUGE_2MB);
  if (!file) {
    WARN("this kernel has no hugepages of 2 MiB");
    return;
  }
  REQUIRE(fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(refusal_of(*file, kFileBytes) ==
        "the other's memory is in hugepages; it must be in ordinary pages");
  CHECK(check_memory_file(*file, kHugepageBytes, "the box's memory", true).ok());
}

TEST_CASE("an arena that others may read shows its memory, and its owner can take it back") {
  auto arena = NumaArena::create(kFileBytes, kAnyNumaNode, Hugepages::kIfFree, Sharing::kReadable);
  REQUIRE(arena.ok());
  REQUIRE(arena->file().ok());
  const auto reader = map_memory_file(arena->file(), arena->size(), "the box's memory", true);
  REQUIRE(reader.ok());
  std::memcpy(arena->take(100), "shown", 5);
  CHECK(std::memcmp(reader->data(), "shown", 5) == 0);
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, arena->file().get(), 0) ==
        MAP_FAILED);
  const char byte = 1;
  CHECK(pwrite(arena->file().get(), &byte, 1, 0) == -1);
  const NumaArena owner = std::move(*arena);
  CHECK(std::memcmp(owner.data(), "shown", 5) == 0);
  CHECK(owner.file().ok());
  CHECK(ftruncate(owner.file().get(), 0) == 0);
}

TEST_CASE("an arena is private unless it is asked to be readable") {
  const auto arena = NumaArena::create(kFileBytes, kAnyNumaNode);
  REQUIRE(arena.ok());
  CHECK_FALSE(arena->file().ok());
}

}  // namespace pbox
