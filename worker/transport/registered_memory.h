// What of the caller's memory is registered (pbox_register_memory). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "base/result.h"

namespace pbox::worker {

class RegisteredMemory {
 public:
  // Errors name the value and the remedy, and change nothing.
  Status add(const std::byte* address, uint64_t bytes);
  Status check(const std::byte* address) const;  // that it is registered, from there on
  void remove(const std::byte* address) { regions_.erase(address); }

 private:
  std::map<const std::byte*, uint64_t> regions_;  // bytes by address; none across another
};

}  // namespace pbox::worker
