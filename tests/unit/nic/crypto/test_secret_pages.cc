// Memory for keys: the kernel's flags for it, and its erasure.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "nic/crypto/secret_pages.h"

namespace pbox::test::secret_pages_test {
namespace {

using crypto::SecretPages;

// The flags of the mapping that holds an address, from /proc/self/smaps: "dd" is absent from core
// dumps, "wf" wiped on fork, "lo" locked.
std::set<std::string> flags_of(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      is_it = begin <= wanted && wanted < end;
    if (!is_it || line.rfind("VmFlags:", 0) != 0) continue;
    std::istringstream words(line.substr(8));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

bool is_zero(const std::byte* slot) {
  return std::all_of(slot, slot + SecretPages::kSlotBytes,
                     [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

TEST_CASE("memory for keys is not dumped, not swapped, and empty in a child") {
  SecretPages pages;
  const auto slot = pages.take();
  REQUIRE(slot);
  const auto flags = flags_of(*slot);
  CHECK(flags.contains("dd"));
  CHECK(flags.contains("wf"));
#ifndef PBOX_LOCKS_NO_MEMORY  // the sanitizers' mlock() does nothing and succeeds
  CHECK(flags.contains("lo") == pages.is_locked());
#endif
  std::memset(*slot, 7, SecretPages::kSlotBytes);
  const pid_t child = fork();
  if (child == 0) _exit(is_zero(*slot) ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK((*slot)[9] == std::byte{7});
  pages.give_back(*slot);
}

TEST_CASE("a slot for keys is erased before anyone else gets it") {
  SecretPages pages;
  constexpr size_t kSlots = 3 * SecretPages::kBlockBytes / SecretPages::kSlotBytes;
  std::set<std::byte*> slots;
  for (size_t index = 0; index < kSlots; ++index) {
    const auto slot = pages.take();
    REQUIRE(slot);
    CHECK(reinterpret_cast<uintptr_t>(*slot) % 64 == 0);
    CHECK(is_zero(*slot));
    std::memset(*slot, 9, SecretPages::kSlotBytes);
    slots.insert(*slot);
  }
  CHECK(slots.size() == kSlots);
  CHECK(pages.slots_taken() == kSlots);
  for (std::byte* slot : slots) {
    pages.give_back(slot);
    CHECK(is_zero(slot));
  }
  CHECK(pages.slots_taken() == 0);
}

}  // namespace pbox::test::secret_pages_test
