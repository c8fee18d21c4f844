// The Internet checksum (RFC 1071). Sums are of 16-bit words in the order of memory, so they need
// no swapping: a checksum is stored as it is, and numbers that are added are swapped first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace pbox::nic {

// Not folded: sums may be added to each other. An odd last byte counts as if a 0 followed. At most
// 64 KiB. Any core.
uint64_t sum_words(std::span<const std::byte> bytes);

// The same for a multiple of 4 bytes known when compiled: headers.
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

// Down to 16 bits, carries added back. Over bytes that hold their checksum it is 0xffff.
inline uint16_t fold(uint64_t sum) {
  sum = (sum & 0xffffffff) + (sum >> 32);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>((sum & 0xffff) + (sum >> 16));
}

// A number as a word of a sum.
inline uint64_t word_of(uint16_t number) {
  return __builtin_bswap16(number);
}

// Bytes in pieces, as if they lay one behind the other.
class Checksum {
 public:
  // `sum`: of what comes before, a whole number of words.
  explicit Checksum(uint64_t sum) : sum_(sum) {}

  void add(std::span<const std::byte> piece) {
    const uint64_t sum = sum_words(piece);
    // Behind an odd number of bytes each byte stands in the other half of its word (RFC 1071, 2B).
    sum_ += odd_ ? __builtin_bswap16(fold(sum)) : sum;
    odd_ ^= (piece.size() & 1) != 0;
  }
  uint16_t folded() const { return fold(sum_); }

 private:
  uint64_t sum_;
  bool odd_ = false;
};

}  // namespace pbox::nic
