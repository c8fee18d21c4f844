// Who has which MAC, and on which link: the neighbour cache of one interface, shared by all its
// pipelines and links.
//
// Readers take no lock: each entry is guarded by a sequence lock over atomics. Whoever changes
// entries tries a lock and gives up if it is taken; it will be asked again. So no call ever waits.
// Memory is of fixed size and allocated by the constructor.
//
// An address is asked for only when a packet needs it, and answers count only if asked for.
// Requests to us are learned from too, as in RFC 826, but never push out an entry that is in use.
// ARP and neighbour discovery authenticate nobody: what matters carries its own tag.
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

// An entry is confirmed by what its neighbour says of itself. Confirmed longer ago than this, it is
// asked again, its known MAC at first, everybody later ...
inline constexpr uint64_t kNeighbourRefreshNs = 30'000'000'000;
inline constexpr uint64_t kNeighbourAgainNs = 1'000'000'000;
inline constexpr uint32_t kNeighbourUnicastTries = 3;
// ... and longer ago than this, it is as good as unknown.
inline constexpr uint64_t kNeighbourDropNs = 120'000'000'000;
// An unknown one is asked for so many times with short pauses, then as above.
inline constexpr uint64_t kNeighbourFirstNs = 100'000'000;
inline constexpr uint32_t kNeighbourFirstTries = 10;

// A caller that keeps what it looked up does so while generation() stays, and no longer than this:
// entries age by being looked up.
inline constexpr uint64_t kNeighbourKeepNs = 1'000'000'000;

struct Neighbour {
  MacAddress mac{};
  uint16_t link = 0;  // where it was heard

  bool operator==(const Neighbour&) const = default;
};

enum class Solicit : uint8_t {
  kNot,
  kEverybody,  // on every link: solicit() without a MAC
  kOwner,      // on the neighbour's link, with its MAC
};

struct NeighbourLookup {
  std::optional<Neighbour> neighbour;  // nothing: the packet cannot be sent now
  Solicit solicit = Solicit::kNot;     // due now; whoever is told so is the only one, and sends it
};

struct NeighbourCounters {
  uint64_t learned = 0;    // addresses that became known
  uint64_t moved = 0;      // known addresses with another MAC or link than before: fail-over
  uint64_t evicted = 0;    // entries in use that had to make room
  uint64_t contended = 0;  // changes given up because another thread was at it
};

// All functions: any thread. Times are of one monotonic clock, and not 0.
class NeighbourTable {
 public:
  NeighbourTable();
  ~NeighbourTable();
  NeighbourTable(const NeighbourTable&) = delete;
  NeighbourTable& operator=(const NeighbourTable&) = delete;

  // For an address on link, that is, one that Interface::next_hop returned.
  NeighbourLookup lookup(const IpAddress& address, uint64_t now_ns);

  // Takes what a frame that is kLearn or kAnswer says; any other says nothing.
  void learn(std::span<const std::byte> frame, const Interface& interface,
             const MacAddress& own_mac, uint16_t link, uint64_t now_ns);

  // Changes after what lookup() returns for some address has changed, ageing excepted. Read before
  // the lookup whose result is kept.
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
