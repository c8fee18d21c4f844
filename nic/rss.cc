#include "nic/rss.h"

#include <algorithm>
#include <array>

namespace pbox::nic {
namespace {

constexpr size_t kInputBytesMax = 2 * 16 + 2 * 2;

uint8_t* put_port(uint8_t* at, uint16_t port) {
  *at++ = static_cast<uint8_t>(port >> 8);
  *at++ = static_cast<uint8_t>(port);
  return at;
}

}  // namespace

uint32_t toeplitz_hash(std::span<const uint8_t> key, std::span<const uint8_t> input) {
  const auto key_byte = [&](size_t index) { return index < key.size() ? key[index] : uint8_t{0}; };
  uint64_t window = 0;  // the 64 key bits that start at the current input bit, first bit highest
  for (size_t index = 0; index < 8; ++index) window = window << 8 | key_byte(index);
  uint32_t hash = 0;
  for (size_t index = 0; index < input.size(); ++index) {
    for (int bit = 7; bit >= 0; --bit) {
      if ((input[index] >> bit & 1) != 0) hash ^= static_cast<uint32_t>(window >> 32);
      window <<= 1;
    }
    window |= key_byte(index + 8);
  }
  return hash;
}

uint32_t rss_hash(const RssTable& table, const Endpoint& source, const Endpoint& destination) {
  std::array<uint8_t, kInputBytesMax> input{};
  const size_t address_bytes = source.ipv6 ? 16 : 4;
  uint8_t* at = std::copy_n(source.address.begin(), address_bytes, input.data());
  at = std::copy_n(destination.address.begin(), address_bytes, at);
  at = put_port(at, source.port);
  at = put_port(at, destination.port);
  return toeplitz_hash(table.key, {input.data(), at});
}

uint16_t rss_queue(const RssTable& table, const Endpoint& source, const Endpoint& destination) {
  if (table.queues.empty()) return 0;
  return table.queues[rss_hash(table, source, destination) % table.queues.size()];
}

std::optional<uint16_t> source_port_for(const RssTable& table, Endpoint local,
                                        const Endpoint& remote, uint32_t queue,
                                        uint16_t first_candidate) {
  constexpr uint32_t kPorts = 65536u - kSourcePortFirst;
  const uint32_t start = std::max(first_candidate, kSourcePortFirst) - kSourcePortFirst;
  for (uint32_t step = 0; step < kPorts; ++step) {
    local.port = static_cast<uint16_t>(kSourcePortFirst + (start + step) % kPorts);
    if (rss_queue(table, local, remote) == queue) return local.port;
  }
  return std::nullopt;
}

}  // namespace pbox::nic
