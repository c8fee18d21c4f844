#include "nic/wire/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace pbox::wire {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected 0x1edc6f41

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(uint32_t crc, const std::byte* data,
                                                        size_t bytes) {
  uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    state = _mm_crc32_u64(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++data) {
    narrow = _mm_crc32_u8(narrow, static_cast<uint8_t>(*data));
  }
  return ~narrow;
}
#endif

using Function = uint32_t (*)(uint32_t, const std::byte*, size_t);

Function choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_portable;
}

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const std::byte* data, size_t bytes) {
  uint32_t state = ~crc;
  for (; bytes > 0; --bytes, ++data) {
    state = (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(*data)) & 0xff];
  }
  return ~state;
}

uint32_t crc32c(uint32_t crc, const std::byte* data, size_t bytes) {
  static const Function function = choose();
  return function(crc, data, bytes);
}

}  // namespace pbox::wire
