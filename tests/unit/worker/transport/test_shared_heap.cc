#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/numa_arena.h"
#include "worker/transport/shared_heap.h"

namespace pbox::worker {
namespace {

constexpr size_t kHeapBytes = 1 << 20;

std::shared_ptr<SharedHeap> small_heap() {
  auto heap = SharedHeap::make(kHeapBytes);
  REQUIRE(heap.ok());
  return *heap;
}

}  // namespace

TEST_CASE("memory of a shared heap is zero, aligned and apart, and shows in its file") {
  const auto heap = small_heap();
  std::vector<std::byte*> blocks;
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{1000}, size_t{100'000}}) {
    std::byte* const block = allocate_shared(heap, bytes);
    REQUIRE(heap->memory().has(block, bytes));
    CHECK(reinterpret_cast<uintptr_t>(block) % kCacheLineBytes == 0);
    CHECK(std::all_of(block, block + bytes, [](std::byte each) { return each == std::byte{0}; }));
    std::memset(block, static_cast<int>(bytes % 251 + 1), bytes);
    blocks.push_back(block);
  }
  CHECK(blocks[0][0] == std::byte{2});
  CHECK(blocks[1][63] == std::byte{65});
  const auto seen = map_memory_file(heap->file(), kHeapBytes, "the heap");
  REQUIRE(seen.ok());
  const auto offset = blocks[3] - heap->memory().data;
  CHECK(std::memcmp(seen->data() + offset, blocks[3], 100'000) == 0);
  for (std::byte* block : blocks) CHECK(free_shared(block));
}

TEST_CASE("nobody else can write to a shared heap, or take its pages away") {
  const auto heap = small_heap();
  const int file = heap->file().get();
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
  CHECK(ftruncate(file, 4096) == -1);
  CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
  CHECK(errno == EPERM);
}

TEST_CASE("a full heap, or none, gives ordinary memory") {
  const auto heap = small_heap();
  std::byte* const large = allocate_shared(heap, kHeapBytes);
  REQUIRE(large != nullptr);
  CHECK_FALSE(heap->memory().has(large, kHeapBytes));
  CHECK(large[kHeapBytes - 1] == std::byte{0});
  std::byte* const ordinary = allocate_shared(nullptr, 100);
  CHECK(reinterpret_cast<uintptr_t>(ordinary) % kCacheLineBytes == 0);
  CHECK(free_shared(large));
  CHECK(free_shared(ordinary));
}

TEST_CASE("more memory than there can be is refused, with a heap and without") {
  for (const auto& heap : {small_heap(), std::shared_ptr<SharedHeap>()}) {
    for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 62, SIZE_MAX / 2 + 1}) {
      CHECK(allocate_shared(heap, bytes) == nullptr);
    }
  }
}

TEST_CASE("memory is given again once it is free, and zero again") {
  const auto heap = small_heap();
  for (int turn = 0; turn < 100; ++turn) {
    std::byte* const half = allocate_shared(heap, kHeapBytes / 2);
    REQUIRE(heap->memory().has(half, kHeapBytes / 2));
    CHECK(half[kHeapBytes / 2 - 1] == std::byte{0});
    std::memset(half, 0xff, kHeapBytes / 2);
    CHECK(free_shared(half));
  }
}

TEST_CASE("memory of another kind, or that is free already, is refused") {
  const auto heap = small_heap();
  std::byte* const block = allocate_shared(heap, 100);
  CHECK_FALSE(free_shared(block + 1));
  CHECK(free_shared(block));
  CHECK_FALSE(free_shared(block));
}

TEST_CASE("memory outlives those who made the heap") {
  auto heap = small_heap();
  std::byte* const block = allocate_shared(heap, 1000);
  heap.reset();
  std::memset(block, 1, 1000);
  CHECK(free_shared(block));
}

TEST_CASE("a forked child frees nothing of its parent's") {
  const auto heap = small_heap();
  std::byte* const block = allocate_shared(heap, kHeapBytes / 2);
  REQUIRE(heap->memory().has(block, kHeapBytes / 2));
  const pid_t child = fork();
  if (child == 0) {
    const bool is_free = free_shared(block);
    std::byte* const other = allocate_shared(heap, 100);
    _exit(is_free && other != nullptr && !heap->memory().has(other, 100) ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  // If the child had freed the block, the parent would get the same memory again.
  std::byte* const next = allocate_shared(heap, kHeapBytes / 2);
  CHECK_FALSE(heap->memory().has(next, 1));
  CHECK(free_shared(block));
  CHECK(free_shared(next));
}

TEST_CASE("threads share a heap") {
  const auto heap = small_heap();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 1; thread <= 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int turn = 0; turn < 500; ++turn) {
        const auto bytes = 64 * static_cast<size_t>(thread) + static_cast<size_t>(turn);
        std::byte* const block = allocate_shared(heap, bytes);
        std::memset(block, thread, bytes);
        if (std::any_of(block, block + bytes,
                        [&](std::byte each) { return each != static_cast<std::byte>(thread); })) {
          ++wrong;
        }
        if (!free_shared(block)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace pbox::worker
