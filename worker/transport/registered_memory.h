// The regions of memory that the caller has registered (pbox_register_memory). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/result.h"

namespace pbox::worker {

class RegisteredMemory {
 public:
  // Errors name the value and the remedy. A failed call changes nothing.
  Status add(const std::byte* address, uint64_t bytes);
  Status check(const std::byte* address) const;  // ok if a region was registered at this address
  void remove(const std::byte* address) { regions_.erase(address); }

 private:
  std::map<const std::byte*, uint64_t> regions_;  // bytes by address; regions do not overlap
};

}  // namespace pbox::worker
