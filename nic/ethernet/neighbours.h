// The neighbour cache of one interface: which station has which MAC, and on which link. All
// pipelines and links of the interface share it.
//
// No call ever waits. Readers take no lock: each entry is guarded by a sequence lock over atomics.
// A writer tries a lock and gives up if it is taken; the protocol will try again. The constructor
// allocates all memory, which has a fixed size.
//
// An address is requested only when a packet needs it, and an answer counts only if it was
// requested. The table learns from requests to us too, as in RFC 826, but they never evict an entry
// in use. ARP and neighbour discovery do not authenticate anybody. Therefore each data packet has a
// tag.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "nic/ethernet/receive.h"

namespace pbox::nic {

inline constexpr uint32_t kNeighbourSets = 1024;  // a power of two
inline constexpr uint32_t kNeighbourWays = 4;

// A message from the neighbour itself confirms its entry. If the last confirmation is older than
// kNeighbourRefreshNs, the neighbour is solicited every kNeighbourAgainNs: first at its known MAC,
// kNeighbourUnicastTries times, then by multicast.
inline constexpr uint64_t kNeighbourRefreshNs = 30'000'000'000;
inline constexpr uint64_t kNeighbourAgainNs = 1'000'000'000;
inline constexpr uint32_t kNeighbourUnicastTries = 3;
// If the last confirmation is older than this, the neighbour counts as unknown.
inline constexpr uint64_t kNeighbourDropNs = 120'000'000'000;
// An unknown neighbour is solicited kNeighbourFirstTries times, kNeighbourFirstNs apart, and then
// every kNeighbourAgainNs.
inline constexpr uint64_t kNeighbourFirstNs = 100'000'000;
inline constexpr uint32_t kNeighbourFirstTries = 10;

// A caller may keep the result of lookup() while generation() is unchanged, but no longer than
// this: the table checks the age of an entry only in lookup().
inline constexpr uint64_t kNeighbourKeepNs = 1'000'000'000;

struct Neighbour {
  MacAddress mac{};
  uint16_t link = 0;  // index of the link on which its message arrived

  bool operator==(const Neighbour&) const = default;
};

// Which solicitation the caller of lookup() must send now.
enum class Solicit : uint8_t {
  kNone,
  kMulticast,  // call solicit() without a MAC for every link
  kUnicast,    // call solicit() with the neighbour's MAC for its link
};

struct NeighbourLookup {
  std::optional<Neighbour> neighbour;  // empty: the packet cannot be sent now
  Solicit solicit = Solicit::kNone;    // no other caller is told to send the same one
};

struct NeighbourCounters {
  uint64_t learned = 0;    // addresses that became known
  uint64_t moved = 0;      // known addresses whose MAC or link changed, as after a fail-over
  uint64_t evicted = 0;    // entries in use that were evicted
  uint64_t contended = 0;  // changes given up because another thread was writing
};

// Any thread may call all functions. All times come from one monotonic clock and are not 0.
class NeighbourTable {
 public:
  NeighbourTable();
  ~NeighbourTable();
  NeighbourTable(const NeighbourTable&) = delete;
  NeighbourTable& operator=(const NeighbourTable&) = delete;

  // Looks up an address on the link, that is, one that Interface::next_hop returned. Adds an entry
  // if there is none.
  NeighbourLookup lookup(const IpAddress& address, uint64_t now_ns);

  // Learns from a frame whose verdict is kLearn or kAnswer, received on `link`. Other frames change
  // nothing.
  void learn(std::span<const std::byte> frame, const Interface& interface,
             const MacAddress& own_mac, uint16_t link, uint64_t now_ns);

  // Changes whenever the result of lookup() changes for some address, except by ageing. A caller
  // that keeps a result reads the generation before the lookup.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  NeighbourCounters counters() const;

 private:
  struct Entry;
  struct Key;
  class Writer;

  std::span<Entry, kNeighbourWays> set_of(const Key& key) const;
  NeighbourLookup add(const Key& key, uint64_t now_ns);

  std::unique_ptr<Entry[]> entries_;
  std::atomic<bool> writing_ = false;
  std::atomic<uint64_t> generation_ = 0;
  std::atomic<uint64_t> learned_ = 0;
  std::atomic<uint64_t> moved_ = 0;
  std::atomic<uint64_t> evicted_ = 0;
  std::atomic<uint64_t> contended_ = 0;
};

}  // namespace pbox::nic
