// Memory for keys: absent from core dumps, zero in a child process, erased when it is freed, and
// never swapped unless the kernel refuses to lock it (is_locked). Used by one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace pbox::crypto {

// Overwrites bytes that held a secret. The compiler cannot optimise this away.
void erase(std::span<std::byte> bytes);

// Slots of kSlotBytes each. Grows by kBlockBytes at a time and never shrinks.
class SecretPages {
 public:
  // Enough for the largest secret: an expanded key of ipsec-mb 2.0, which has 1264 bytes.
  static constexpr size_t kSlotBytes = 2048;
  static constexpr size_t kBlockBytes = 64 * 1024;

  SecretPages() = default;
  SecretPages(const SecretPages&) = delete;
  SecretPages& operator=(const SecretPages&) = delete;
  // Every slot must have been given back.
  ~SecretPages();

  // Returns a slot of kSlotBytes zero bytes, aligned to a cache line. kResourceExhausted: there is
  // no memory.
  Result<std::byte*> take();
  // Erases the slot. `slot` is from take().
  void give_back(std::byte* slot);

  size_t slots_taken() const { return slots_taken_; }
  // False if the kernel refused to keep some of the pages in memory (RLIMIT_MEMLOCK), so that they
  // may be swapped out.
  bool is_locked() const { return is_locked_; }

 private:
  Status grow();

  std::vector<std::span<std::byte>> blocks_;
  std::vector<std::byte*> free_;
  size_t slots_taken_ = 0;
  bool is_locked_ = true;
};

}  // namespace pbox::crypto
