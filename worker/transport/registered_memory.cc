#include "worker/transport/registered_memory.h"

#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <string>

#include "base/check.h"
#include "base/limits.h"

namespace pbox::worker {
namespace {

// Returns, for example, "4096 bytes at 0x7f0012340000".
std::string describe(const std::byte* address, uint64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%" PRIu64 " bytes at %p", bytes,
                static_cast<const void*>(address));
  return text;
}

}  // namespace

Status RegisteredMemory::add(const std::byte* address, uint64_t bytes) {
  if (address == nullptr) return invalid("address is NULL: give the memory's first byte");
  if (bytes == 0) return invalid("bytes is 0: give the size of the whole memory");
  if (bytes > UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) {
    return invalid(describe(address, bytes) +
                   " reach beyond the end of the address space: correct the argument bytes");
  }
  auto next = regions_.upper_bound(address);
  const auto overlaps = [&](const auto& region) {
    return address < region.first + region.second && region.first < address + bytes;
  };
  const auto before = next == regions_.begin() ? regions_.end() : std::prev(next);
  const auto other = before != regions_.end() && overlaps(*before) ? before : next;
  if (other != regions_.end() && overlaps(*other)) {
    return Error{ErrorCode::kAlreadyExists,
                 describe(address, bytes) + " overlap memory that is registered already, " +
                     describe(other->first, other->second) + "; unregister that first"};
  }
  if (regions_.size() >= limits::kMemoryRegionsMax) {
    return Error{ErrorCode::kResourceExhausted,
                 std::to_string(regions_.size()) +
                     " regions of memory are registered, which is the maximum; register "
                     "larger ones that hold several buffers each, or unregister some"};
  }
  PBOX_CHECK(!regions_.contains(address));
  regions_[address] = bytes;
  return ok_status();
}

Status RegisteredMemory::check(const std::byte* address) const {
  if (regions_.contains(address)) return ok_status();
  char text[96];
  std::snprintf(text, sizeof(text),
                "no memory is registered at %p; pass the address that was registered",
                static_cast<const void*>(address));
  return Error{ErrorCode::kNotFound, text};
}

}  // namespace pbox::worker
