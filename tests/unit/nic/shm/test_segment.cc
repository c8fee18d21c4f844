#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>

#include "nic/shm/segment.h"
#include "tests/unit/nic/shm/segments.h"

namespace pbox::nic {
namespace {

off_t file_bytes(const Descriptor& file) {
  return lseek(file.get(), 0, SEEK_END);
}

// Returns why the file is refused.
std::string unfitness(const Descriptor& file) {
  REQUIRE(file.ok());
  const auto mapped = OtherSegment::map(file, kSmallRing);
  REQUIRE_FALSE(mapped.ok());
  CHECK(mapped.error().code == ErrorCode::kInvalidArgument);
  return mapped.error().message;
}

Descriptor memory_file(unsigned flags, off_t bytes, int seals) {
  Descriptor file(memfd_create("pbox-test", MFD_CLOEXEC | flags));
  REQUIRE(file.ok());
  REQUIRE(ftruncate(file.get(), bytes) == 0);
  if (seals != 0) REQUIRE(fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a segment is sealed, so that it keeps its size and its seals") {
  const OwnSegment segment = small_segment();
  const int file = segment.file().get();
  const int seals = fcntl(file, F_GET_SEALS);
  for (const int seal : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    CHECK((seals & seal) != 0);
  }
  const off_t bytes = file_bytes(segment.file());
  CHECK(bytes > static_cast<off_t>(kSmallRing));
  for (const off_t other : {off_t{0}, bytes - 1, bytes + 1}) {
    CHECK(ftruncate(file, other) == -1);
    CHECK(errno == EPERM);
  }
  CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) == -1);
  CHECK(file_bytes(segment.file()) == bytes);
}

TEST_CASE("only a segment's owner can write to it") {
  const OwnSegment segment = small_segment();
  const Descriptor copy(dup(segment.file().get()));
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, copy.get(), 0) == MAP_FAILED);
  CHECK(errno == EPERM);
  const char byte = 1;
  CHECK(pwrite(copy.get(), &byte, sizeof(byte), 0) == -1);
  CHECK(errno == EPERM);
  const auto other = OtherSegment::map(copy, kSmallRing);
  REQUIRE(other.ok());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  CHECK(mprotect(const_cast<SegmentHead*>(&other->head()), page, PROT_READ | PROT_WRITE) == -1);
  CHECK(errno == EACCES);
}

TEST_CASE("a new segment is all zero") {
  const OwnSegment segment = small_segment();
  CHECK(segment.head().written == 0);
  CHECK(segment.head().released == 0);
  CHECK(segment.head().wakes == 0);
  CHECK(segment.ring_bytes() == kSmallRing);
  uint64_t sum = 0;
  for (uint64_t at = 0; at < 2 * kSmallRing; ++at) {
    sum += static_cast<uint64_t>(segment.ring()[at]);
  }
  CHECK(sum == 0);
}

TEST_CASE("both copies of a ring are the same memory, at both ends") {
  const OwnSegment segment = small_segment();
  const auto other = OtherSegment::map(segment.file(), kSmallRing);
  REQUIRE(other.ok());
  CHECK(other->ring_bytes() == kSmallRing);
  std::byte* const ring = segment.ring();
  for (const uint64_t at : {uint64_t{0}, uint64_t{4097}, kSmallRing - 1}) {
    for (const uint64_t written : {at, at + kSmallRing}) {
      const auto value = static_cast<std::byte>(1 + written % 251);
      ring[written] = value;
      CHECK(ring[at] == value);
      CHECK(ring[at + kSmallRing] == value);
      CHECK(other->ring()[at] == value);
      CHECK(other->ring()[at + kSmallRing] == value);
    }
  }
  // The head is apart from both.
  CHECK(segment.head().written == 0);
  segment.head().written = 123;
  CHECK(other->head().written == 123);
  CHECK(ring[0] != std::byte{123});
}

TEST_CASE("a mapped segment outlives its files and its owner") {
  std::optional<OtherSegment> other;
  {
    OwnSegment segment = small_segment();
    other = as_seen(segment);
    segment.close_file();
    CHECK_FALSE(segment.file().ok());
    OwnSegment moved = std::move(segment);
    moved.ring()[5] = std::byte{6};
    moved.head().released = 7;
  }
  CHECK(other->ring()[5 + kSmallRing] == std::byte{6});
  CHECK(other->head().released == 7);
}

TEST_CASE("a file that is no memory is refused as the other end's segment") {
  CHECK(contains(unfitness(Descriptor(eventfd(0, EFD_CLOEXEC))), "not a file of memfd_create()"));
  CHECK(contains(unfitness(Descriptor(open("/proc/self/exe", O_RDONLY | O_CLOEXEC))),
                 "not a file of memfd_create()"));
  std::FILE* const ordinary = std::tmpfile();
  REQUIRE(ordinary != nullptr);
  const Descriptor file(dup(fileno(ordinary)));
  std::fclose(ordinary);
  REQUIRE(ftruncate(file.get(), 1 << 20) == 0);
  const std::string reason = unfitness(file);
  // A file of tmpfs has seals, but not the one that is needed.
  CHECK((contains(reason, "not a file of memfd_create()") || contains(reason, "F_SEAL_SHRINK")));
}

TEST_CASE("memory that may shrink is refused as the other end's segment") {
  for (const unsigned flags : {0u, unsigned{MFD_ALLOW_SEALING}}) {
    const std::string reason = unfitness(memory_file(flags, 1 << 20, 0));
    CHECK(contains(reason, "may shrink"));
    CHECK(contains(reason, "F_SEAL_SHRINK"));
  }
  CHECK(contains(unfitness(memory_file(MFD_ALLOW_SEALING, 1 << 20, F_SEAL_GROW)), "may shrink"));
}

TEST_CASE("memory that is smaller than its ring is refused as the other end's segment") {
  const off_t needed = file_bytes(small_segment().file());
  for (const off_t bytes : {off_t{0}, off_t{kSmallRing}, needed - 1}) {
    const std::string reason = unfitness(memory_file(MFD_ALLOW_SEALING, bytes, F_SEAL_SHRINK));
    CHECK(contains(reason, "has " + std::to_string(bytes) + " bytes"));
    CHECK(contains(reason, std::to_string(needed)));
  }
  const auto mapped =
      OtherSegment::map(memory_file(MFD_ALLOW_SEALING, needed, F_SEAL_SHRINK), kSmallRing);
  CHECK(mapped.ok());
}

}  // namespace pbox::nic
