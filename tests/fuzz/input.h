// The fuzzer's bytes as a stream of choices. Past the end every choice is 0. So an input that is
// cut off still makes the same choices up to its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"

#ifdef PBOX_FUZZ
static_assert(pbox::kDatapathChecksOn, "the preset asan must not define NDEBUG");
#endif

namespace pbox::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : left_(data, bytes) {}

  bool empty() const { return left_.empty(); }

  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }

  // Returns a number in [0, bound).
  uint32_t below(uint32_t bound) { return byte() % bound; }

  // Reads a number in little endian.
  template <typename T>
  T number() {
    T value = 0;
    for (size_t index = 0; index < sizeof(T); ++index) {
      value = static_cast<T>(value | T{byte()} << (8 * index));
    }
    return value;
  }

  // Returns the next `count` bytes, or as many as are left. It is a copy of exactly that size, so
  // that the sanitizer sees a read past its end.
  std::vector<std::byte> bytes(size_t count) {
    const auto taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    std::vector<std::byte> copy(taken.size());
    std::transform(taken.begin(), taken.end(), copy.begin(),
                   [](uint8_t b) { return std::byte{b}; });
    return copy;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace pbox::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
