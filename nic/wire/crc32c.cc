#include "nic/wire/crc32c.h"

#include <array>

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

}  // namespace

uint32_t crc32c_portable(uint32_t crc, const std::byte* data, size_t bytes) {
  uint32_t state = ~crc;
  for (; bytes > 0; --bytes, ++data) {
    state = (state >> 8) ^ kTable[(state ^ static_cast<uint8_t>(*data)) & 0xff];
  }
  return ~state;
}

}  // namespace pbox::wire
