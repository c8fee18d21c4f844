#include "nic/crypto/secret_pages.h"

#include <openssl/crypto.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace pbox::crypto {

void erase(std::span<std::byte> bytes) {
  OPENSSL_cleanse(bytes.data(), bytes.size());
}

SecretPages::~SecretPages() {
  PBOX_CHECK(slots_taken_ == 0);
  for (const std::span<std::byte> block : blocks_) munmap(block.data(), block.size());
}

Status SecretPages::grow() {
  void* memory =
      mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Error{ErrorCode::kResourceExhausted,
                 std::string("no memory for keys: ") + std::strerror(errno)};
  }
  // Every kernel that PBox runs on supports both, and they cannot fail on a new mapping.
  PBOX_CHECK(madvise(memory, kBlockBytes, MADV_DONTDUMP) == 0);
  PBOX_CHECK(madvise(memory, kBlockBytes, MADV_WIPEONFORK) == 0);
  is_locked_ = is_locked_ && mlock(memory, kBlockBytes) == 0;
  blocks_.emplace_back(static_cast<std::byte*>(memory), kBlockBytes);
  for (size_t offset = kBlockBytes; offset > 0; offset -= kSlotBytes) {
    free_.push_back(blocks_.back().data() + offset - kSlotBytes);
  }
  return ok_status();
}

Result<std::byte*> SecretPages::take() {
  if (free_.empty()) {
    if (const Status grown = grow(); !grown) return grown.error();
  }
  std::byte* slot = free_.back();
  free_.pop_back();
  ++slots_taken_;
  return slot;
}

void SecretPages::give_back(std::byte* slot) {
  PBOX_CHECK(slot != nullptr && slots_taken_ > 0);
  erase({slot, kSlotBytes});
  free_.push_back(slot);
  --slots_taken_;
}

}  // namespace pbox::crypto
