// Real memory of this process, and what the kernel reports about its pages.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "appliance/pipelines/prefaulter.h"

namespace pbox::pipelines {
namespace {

constexpr size_t kBytes = 9u << 20;  // several pieces, the last one smaller
constexpr size_t kPageBytes = 4096;

NumaArena arena_of(size_t bytes, Sharing sharing = Sharing::kPrivate) {
  return std::move(*NumaArena::create(bytes, kAnyNumaNode, Hugepages::kNever, sharing));
}

size_t pages_of(const NumaArena& memory) {
  std::vector<unsigned char> pages(memory.size() / kPageBytes);
  REQUIRE(mincore(memory.data(), memory.size(), pages.data()) == 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                           [](unsigned char page) { return (page & 1) != 0; }));
}

void await(int fd) {
  pollfd wait{fd, POLLIN, 0};
  REQUIRE(poll(&wait, 1, 30'000) == 1);
  uint64_t count = 0;
  REQUIRE(eventfd_read(fd, &count) == 0);
}

}  // namespace

TEST_CASE("memory gets all its pages and keeps its contents") {
  const Descriptor done(eventfd(0, EFD_CLOEXEC));
  Prefaulter prefaulter(done.get());
  const auto sharing = GENERATE(Sharing::kPrivate, Sharing::kReadable);
  const NumaArena memory = arena_of(kBytes, sharing);
  memory.data()[kBytes / 2] = std::byte{7};
  CHECK(pages_of(memory) < memory.size() / kPageBytes);
  const auto prefault = prefaulter.begin(memory);
  REQUIRE(prefault != nullptr);
  await(done.get());
  CHECK(prefault->is_over());
  CHECK(pages_of(memory) == memory.size() / kPageBytes);
  CHECK(memory.data()[kBytes / 2] == std::byte{7});
}

TEST_CASE("memory may go while it gets its pages") {
  const Descriptor done(eventfd(0, EFD_CLOEXEC));
  Prefaulter prefaulter(done.get());
  for (int turn = 0; turn < 20; ++turn) {
    const NumaArena first = arena_of(kBytes);
    auto second = std::make_unique<NumaArena>(arena_of(kBytes));
    const auto prefault = prefaulter.begin(first);
    auto given_up = prefaulter.begin(*second);
    given_up.reset();
    second.reset();
    await(done.get());
    CHECK(prefault->is_over());
  }
}

TEST_CASE("memory that cannot have its pages is left as it is") {
  const Descriptor done(eventfd(0, EFD_CLOEXEC));
  Prefaulter prefaulter(done.get());
  const NumaArena memory = arena_of(kBytes);
  REQUIRE(mprotect(memory.data(), memory.size(), PROT_READ) == 0);
  const auto prefault = prefaulter.begin(memory);
  await(done.get());
  CHECK(prefault->is_over());
  CHECK(pages_of(memory) == 0);
}

}  // namespace pbox::pipelines
