// The Internet checksum (RFC 1071). Sums are over 16-bit words in memory order, so packet bytes
// need no swapping. A checksum is stored as it is; a number must be swapped before it is added
// (word_of).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"

namespace pbox::nic {

// Returns the sum of at most 64 KiB, not folded, so that sums may be added. An odd last byte counts
// as if a 0 followed. Any core; no allocation.
uint64_t sum_words(std::span<const std::byte> bytes);

// Returns the same sum for a header, whose length is a multiple of 4 known at compile time.
template <size_t bytes>
inline uint64_t sum_header(const void* at) {
  static_assert(bytes % 4 == 0);
  uint64_t sum = 0;
  for (size_t offset = 0; offset < bytes; offset += 4) {
    uint32_t word;
    std::memcpy(&word, static_cast<const std::byte*>(at) + offset, sizeof(word));
    sum += word;
  }
  return sum;
}

// Folds a sum to 16 bits, adding all carries back. The result for bytes that include their own
// correct checksum is 0xffff.
inline uint16_t fold(uint64_t sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xffff) + (sum >> 16));
}

// Converts a number to a word of a sum.
inline uint64_t word_of(uint16_t number) {
  return __builtin_bswap16(number);
}

// Computes the checksum of pieces as if they were one contiguous block.
class Checksum {
 public:
  // `sum`: the sum of the bytes before the first piece, a whole number of words.
  explicit Checksum(uint64_t sum) : sum_(sum) {}

  void add(std::span<const std::byte> piece) {
    PBOX_DCHECK(piece.data() != nullptr || piece.empty());
    const uint64_t sum = sum_words(piece);
    // After an odd number of bytes, each byte belongs to the other half of its word (RFC 1071, 2B).
    sum_ += odd_ ? __builtin_bswap16(fold(sum)) : sum;
    odd_ ^= (piece.size() & 1) != 0;
  }
  uint16_t folded() const { return fold(sum_); }

 private:
  uint64_t sum_;
  bool odd_ = false;
};

}  // namespace pbox::nic
