// Receive-side scaling (RSS): which queue a NIC chooses for a UDP packet, and which source port
// makes it choose a given queue. Sources: Microsoft, "RSS hashing types" and "Verifying the RSS
// hash calculation" (Windows driver documentation). The hash is Krawczyk's Toeplitz construction
// (CRYPTO 1994). All functions are pure; any thread may call them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nic/endpoint.h"

namespace pbox::nic {

// A NIC's RSS configuration, set by PBox or chosen by the NIC. A usable table has a key and at
// least one entry.
struct RssTable {
  std::vector<uint8_t> key;      // at least 40 bytes (IPv6 with ports needs 40); usually 40 or 52
  std::vector<uint16_t> queues;  // redirection table: index is the hash modulo the table's length
  bool operator==(const RssTable&) const = default;
};

// Returns the Toeplitz hash. Missing key bits count as 0, so `key` should have input.size() + 4
// bytes.
uint32_t toeplitz_hash(std::span<const uint8_t> key, std::span<const uint8_t> input);

// Returns the RSS hash of a UDP packet: the Toeplitz hash of source address, destination address,
// source port and destination port, each big endian. Both endpoints must have the same family.
uint32_t rss_hash(const RssTable& table, const Endpoint& source, const Endpoint& destination);

// Returns the queue that the NIC chooses for the packet; 0 if the table has no entries.
uint16_t rss_queue(const RssTable& table, const Endpoint& source, const Endpoint& destination);

inline constexpr uint16_t kSourcePortFirst = 1024;  // lower ports are reserved for the system

// Returns a source port such that packets from it, at the address of `local`, to `remote` reach
// `queue`; nullopt if there is none. The search goes upwards from `first_candidate` and wraps to
// kSourcePortFirst.
std::optional<uint16_t> source_port_for(const RssTable& table, Endpoint local,
                                        const Endpoint& remote, uint32_t queue,
                                        uint16_t first_candidate);

}  // namespace pbox::nic
