// Receive-side scaling: which queue a NIC puts a UDP packet into, and the source port that makes it
// choose a given one. Microsoft, "RSS hashing types" and "Verifying the RSS hash calculation"
// (Windows driver documentation); the hash is Krawczyk's Toeplitz construction (CRYPTO 1994). Pure;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/endpoint.h"

namespace pbox::nic {

// What a NIC was set to, or chose. A usable table has a key and at least one entry.
struct RssTable {
  std::vector<uint8_t> key;      // at least 40 bytes, as IPv6 with ports needs; usually 40 or 52
  std::vector<uint16_t> queues;  // the redirection table: queue by hash modulo its length
  bool operator==(const RssTable&) const = default;
};

// Key bits beyond the key's end count as 0, so key should have input.size() + 4 bytes.
uint32_t toeplitz_hash(std::span<const uint8_t> key, std::span<const uint8_t> input);

// The hash of a UDP packet: source address, destination address, source port, destination port,
// each big endian. Both of one family.
uint32_t rss_hash(const RssTable& table, const Endpoint& source, const Endpoint& destination);

// The queue that the packet ends up in; a table without entries has only queue 0.
uint16_t rss_queue(const RssTable& table, const Endpoint& source, const Endpoint& destination);

inline constexpr uint16_t kSourcePortFirst = 1024;  // those below are the system's

// The first port, from `first_candidate` upwards and round to kSourcePortFirst again, from which
// packets of local's address to `remote` reach `queue`. Nothing if no port does.
std::optional<uint16_t> source_port_for(const RssTable& table, Endpoint local,
                                        const Endpoint& remote, uint32_t queue,
                                        uint16_t first_candidate);

}  // namespace pbox::nic
