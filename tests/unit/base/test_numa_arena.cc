#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "base/numa_arena.h"

namespace pbox {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugepageBytes = 2u << 20;

// Returns the highest node that the kernel reports; 0 without NUMA.
int last_node() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string text;
  file >> text;
  const size_t start = text.find_last_of(",-");
  return text.empty() ? 0 : std::stoi(start == std::string::npos ? text : text.substr(start + 1));
}

bool numa_is_available() {
  return numa_available() >= 0;
}

struct Policy {
  int mode = -1;
  unsigned long nodes = 0;
};

Policy policy_at(void* address) {
  Policy policy;
  unsigned long mask[16] = {};
  if (get_mempolicy(&policy.mode, mask, sizeof(mask) * 8, address, MPOL_F_ADDR) == 0) {
    policy.nodes = mask[0];
  }
  return policy;
}

// Returns the node of a page, or a negative errno; -ENOENT means that it was not touched yet.
int node_of_page(void* address) {
  int status = -1;
  numa_move_pages(0, 1, &address, nullptr, &status, 0);
  return status;
}

int free_hugepages(int node) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node) +
                     "/hugepages/hugepages-2048kB/free_hugepages");
  int count = 0;
  file >> count;
  return count;
}

}  // namespace

TEST_CASE("an arena is bound to its node and its pages are allocated there") {
  if (!numa_is_available()) {
    WARN("NUMA is unavailable on this machine: nothing to check");
    return;
  }
  for (const int node : {0, last_node()}) {
    CAPTURE(node);
    auto arena = NumaArena::create(64 * kPageBytes, node);
    REQUIRE(arena);
    CHECK(arena->node() == node);
    const Policy policy = policy_at(arena->data());
    CHECK(policy.mode == MPOL_BIND);
    CHECK(policy.nodes == 1ul << node);
    for (size_t page = 0; page < 64; ++page) {
      std::byte* address = arena->data() + page * kPageBytes;
      *address = std::byte{1};
      CHECK(node_of_page(address) == node);
    }
  }
}

TEST_CASE("an arena without a node has the default memory policy") {
  auto arena = NumaArena::create(kPageBytes, kAnyNumaNode);
  REQUIRE(arena);
  CHECK(arena->node() == kAnyNumaNode);
  if (numa_is_available()) CHECK(policy_at(arena->data()).mode == MPOL_DEFAULT);
}

TEST_CASE("a child made by fork() does not have an arena, and its owner keeps the contents") {
  const auto sharing = GENERATE(Sharing::kPrivate, Sharing::kReadable);
  const size_t bytes = GENERATE(as<size_t>{}, kPageBytes, 2 * kHugepageBytes);
  auto arena = NumaArena::create(bytes, kAnyNumaNode, Hugepages::kIfFree, sharing);
  REQUIRE(arena);
  arena->data()[0] = std::byte{7};
  const pid_t child = fork();
  if (child == 0) {
    // Something else may have been mapped there meanwhile.
    std::byte seen{};
    const iovec here{&seen, 1}, there{arena->data(), 1};
    const bool is_mapped = process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
    const bool lacks_arena = is_mapped ? seen != std::byte{7} : errno == EFAULT;
    _exit(lacks_arena ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(arena->data()[0] == std::byte{7});
}

TEST_CASE("an error names a node that does not exist") {
  if (!numa_is_available()) return;
  for (const int node : {last_node() + 1, 1022, 1023, 100'000}) {
    const auto arena = NumaArena::create(kPageBytes, node);
    REQUIRE_FALSE(arena);
    CHECK_THAT(arena.error().message, Catch::Contains("node " + std::to_string(node)));
  }
}

TEST_CASE("ordinary pages are touched lazily and read as zero") {
  auto arena = NumaArena::create(4 * kPageBytes, 0);
  REQUIRE(arena);
  if (numa_is_available()) CHECK(node_of_page(arena->data() + kPageBytes) == -ENOENT);
  for (size_t i = 0; i < arena->size(); ++i) REQUIRE(arena->data()[i] == std::byte{0});
}

TEST_CASE("an arena uses hugepages if the node has enough, and ordinary pages otherwise") {
  const int free_count = free_hugepages(0);
  const size_t enough = 2 * kHugepageBytes;
  auto arena = NumaArena::create(enough, 0);
  REQUIRE(arena);
  CHECK(arena->has_hugepages() == (free_count >= 2));
  arena->data()[enough - 1] = std::byte{7};

  const size_t too_many = (static_cast<size_t>(free_count) + 1) * kHugepageBytes;
  auto large = NumaArena::create(too_many, 0);
  REQUIRE(large);
  CHECK_FALSE(large->has_hugepages());
  large->data()[too_many - 1] = std::byte{7};

  auto plain = NumaArena::create(enough, 0, Hugepages::kNever);
  REQUIRE(plain);
  CHECK_FALSE(plain->has_hugepages());
}

TEST_CASE("take returns cache-line aligned blocks that do not overlap") {
  auto arena = NumaArena::create(kPageBytes, 0);
  REQUIRE(arena);
  std::byte* first = arena->take(10);
  std::byte* second = arena->take(64);
  CHECK(first == arena->data());
  CHECK(second == first + kCacheLineBytes);
  CHECK(arena->taken() == 2 * kCacheLineBytes);
}

TEST_CASE("a moved arena is the only owner of its mapping") {
  auto arena = NumaArena::create(kPageBytes, 0);
  REQUIRE(arena);
  NumaArena owner = std::move(*arena);
  owner.data()[0] = std::byte{5};
  NumaArena other;
  other = std::move(owner);
  CHECK(other.data()[0] == std::byte{5});
  CHECK(other.size() == kPageBytes);
}

}  // namespace pbox
