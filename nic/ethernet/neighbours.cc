#include "nic/ethernet/neighbours.h"

#include <utility>

#include "base/check.h"

namespace pbox::nic {
namespace {

// How often a reader tries to read an entry that a writer changes meanwhile.
constexpr int kReadTries = 4;

// Returns 0 if `then_ns` is later: each thread reads the clock itself, so another thread's time may
// be slightly ahead of ours.
uint64_t elapsed(uint64_t now_ns, uint64_t then_ns) {
  return now_ns > then_ns ? now_ns - then_ns : 0;
}

// Never returns 0, which stands for "no neighbour": no MAC is zero.
uint64_t pack(const Neighbour& neighbour) {
  PBOX_DCHECK(is_unicast(neighbour.mac));
  uint64_t packed = neighbour.link;
  for (const uint8_t byte : neighbour.mac) packed = packed << 8 | byte;
  return packed;
}

Neighbour unpack(uint64_t packed) {
  PBOX_DCHECK(packed != 0);
  Neighbour neighbour{.mac = {}, .link = static_cast<uint16_t>(packed >> 48)};
  for (int index = 5; index >= 0; --index, packed >>= 8) {
    neighbour.mac[index] = static_cast<uint8_t>(packed);
  }
  return neighbour;
}

}  // namespace

// An address as two words. IPv4 addresses take the place of IPv6's v4-mapped addresses, which no
// station has.
struct NeighbourTable::Key {
  uint64_t high = 0;
  uint64_t low = 0;

  explicit Key(const IpAddress& address) {
    if (address.ipv6) {
      high = load64(address.bytes.data());
      low = load64(address.bytes.data() + 8);
    } else {
      low = uint64_t{0xffff} << 32 | load32(address.bytes.data());
    }
  }
};

// An entry takes one cache line. Key, neighbour and confirmed_ns form a unit, guarded by a sequence
// lock: `sequence` is odd while they are written. Their stores release and their loads acquire, so
// a reader that sees a new word sees the odd sequence too. No fence is needed.
struct NeighbourTable::Entry {
  alignas(64) std::atomic<uint64_t> sequence = 0;
  std::atomic<uint64_t> key_high = 0;
  std::atomic<uint64_t> key_low = 0;
  std::atomic<uint64_t> neighbour = 0;  // packed; 0 if not known yet
  // When the neighbour was confirmed last; while it is unknown, when the entry was created.
  std::atomic<uint64_t> confirmed_ns = 0;
  // The sequence lock does not guard these two: any thread that looks up the address may write
  // them.
  std::atomic<uint64_t> solicited_ns = 0;  // last solicitation since the entry was written; 0: none
  std::atomic<uint32_t> tries = 0;         // solicitations since the entry was written

  struct Content {
    uint64_t neighbour = 0;
    uint64_t confirmed_ns = 0;

    bool is_live(uint64_t now_ns) const {
      return neighbour != 0 && elapsed(now_ns, confirmed_ns) < kNeighbourDropNs;
    }
  };

  bool has(const Key& key) const {
    return key_low.load(std::memory_order_acquire) == key.low &&
           key_high.load(std::memory_order_acquire) == key.high;
  }

  // Returns nothing if the entry belongs to another address or keeps changing.
  std::optional<Content> read(const Key& key) const {
    for (int attempt = 0; attempt < kReadTries; ++attempt) {
      const uint64_t before = sequence.load(std::memory_order_acquire);
      if (!has(key)) return std::nullopt;
      const Content content{.neighbour = neighbour.load(std::memory_order_acquire),
                            .confirmed_ns = confirmed_ns.load(std::memory_order_acquire)};
      if (before % 2 == 0 && sequence.load(std::memory_order_relaxed) == before) return content;
    }
    return std::nullopt;
  }

  // The functions down to write() may be called only while holding the Writer.
  bool is_free() const {
    return (key_high.load(std::memory_order_relaxed) | key_low.load(std::memory_order_relaxed)) ==
           0;
  }
  Content content() const {
    return {.neighbour = neighbour.load(std::memory_order_relaxed),
            .confirmed_ns = confirmed_ns.load(std::memory_order_relaxed)};
  }
  // Returns whether the entry may be given to a station that sends us a request: it is free, or
  // neither confirmed nor asked for recently.
  bool is_reusable(uint64_t now_ns) const {
    return is_free() || elapsed(now_ns, content().confirmed_ns) >= kNeighbourDropNs;
  }
  void write(const Key& key, const Content& content) {
    const uint64_t before = sequence.load(std::memory_order_relaxed);
    PBOX_DCHECK(before % 2 == 0);  // one writer at a time
    PBOX_DCHECK(content.confirmed_ns != 0);
    sequence.store(before + 1, std::memory_order_relaxed);
    key_high.store(key.high, std::memory_order_release);
    key_low.store(key.low, std::memory_order_release);
    neighbour.store(content.neighbour, std::memory_order_release);
    confirmed_ns.store(content.confirmed_ns, std::memory_order_release);
    solicited_ns.store(0, std::memory_order_release);
    tries.store(0, std::memory_order_release);
    PBOX_DCHECK(sequence.load(std::memory_order_relaxed) == before + 1);
    sequence.store(before + 2, std::memory_order_release);
  }

  // Returns whether this thread must solicit now: the last solicitation was at least `pause_ns`
  // ago, and no other thread has claimed this one. Sets the number of earlier solicitations.
  bool claim_solicitation(uint64_t pause_ns, uint64_t now_ns, uint32_t& tries_before) {
    PBOX_DCHECK(now_ns != 0 && pause_ns > 0);
    PBOX_DCHECK(!is_free());
    tries_before = tries.load(std::memory_order_relaxed);
    uint64_t last_ns = solicited_ns.load(std::memory_order_relaxed);
    if (last_ns != 0 && elapsed(now_ns, last_ns) < pause_ns) return false;
    // If several threads see the same last time, only one of them succeeds.
    if (!solicited_ns.compare_exchange_strong(last_ns, now_ns, std::memory_order_relaxed)) {
      return false;
    }
    tries.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  // Turns the content into the answer of lookup(), with a solicitation if one is due.
  NeighbourLookup answer_lookup(const Content& content, uint64_t now_ns) {
    NeighbourLookup found;
    uint32_t tries_before = 0;
    if (!content.is_live(now_ns)) {
      const uint64_t pause_ns = tries.load(std::memory_order_relaxed) < kNeighbourFirstTries
                                    ? kNeighbourFirstNs
                                    : kNeighbourAgainNs;
      if (claim_solicitation(pause_ns, now_ns, tries_before)) found.solicit = Solicit::kMulticast;
      return found;
    }
    found.neighbour = unpack(content.neighbour);
    PBOX_DCHECK(is_unicast(found.neighbour->mac));
    if (elapsed(now_ns, content.confirmed_ns) >= kNeighbourRefreshNs &&
        claim_solicitation(kNeighbourAgainNs, now_ns, tries_before)) {
      found.solicit =
          tries_before < kNeighbourUnicastTries ? Solicit::kUnicast : Solicit::kMulticast;
    }
    return found;
  }
};

// Tries to get the exclusive right to change entries. It never waits; test it before writing.
class NeighbourTable::Writer {
 public:
  explicit Writer(NeighbourTable& table)
      : table_(table), owns_(!table.writing_.exchange(true, std::memory_order_acquire)) {
    if (!owns_) table_.contended_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Writer() {
    PBOX_DCHECK(!owns_ || table_.writing_.load(std::memory_order_relaxed));
    if (owns_) table_.writing_.store(false, std::memory_order_release);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  explicit operator bool() const { return owns_; }

 private:
  NeighbourTable& table_;
  const bool owns_;
};

NeighbourTable::NeighbourTable()
    : entries_(std::make_unique<Entry[]>(size_t{kNeighbourSets} * kNeighbourWays)) {}

NeighbourTable::~NeighbourTable() = default;

std::span<NeighbourTable::Entry, kNeighbourWays> NeighbourTable::set_of(const Key& key) const {
  static_assert((kNeighbourSets & (kNeighbourSets - 1)) == 0);
  // Multiplicative hashing (Knuth): the high bits depend on all bits of the key.
  const uint64_t mixed = (key.low ^ key.high * 0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15;
  const size_t set = (mixed >> 32) & (kNeighbourSets - 1);
  PBOX_DCHECK(set < kNeighbourSets);
  return std::span<Entry, kNeighbourWays>(&entries_[set * kNeighbourWays], kNeighbourWays);
}

NeighbourLookup NeighbourTable::lookup(const IpAddress& address, uint64_t now_ns) {
  PBOX_DCHECK(now_ns != 0);
  const Key key(address);
  for (Entry& entry : set_of(key)) {
    if (!entry.has(key)) continue;
    if (const auto content = entry.read(key)) return entry.answer_lookup(*content, now_ns);
  }
  return add(key, now_ns);
}

NeighbourLookup NeighbourTable::add(const Key& key, uint64_t now_ns) {
  PBOX_DCHECK(now_ns != 0);
  const Writer writer(*this);
  if (!writer) return {};
  Entry* victim = nullptr;
  // Order of eviction: free entries, entries that are unknown or have expired, then the entry whose
  // confirmation is oldest.
  const auto eviction_rank = [&](const Entry& entry) {
    const Entry::Content content = entry.content();
    return std::pair(content.is_live(now_ns), entry.is_free() ? 0 : content.confirmed_ns);
  };
  for (Entry& entry : set_of(key)) {
    if (entry.has(key)) return entry.answer_lookup(entry.content(), now_ns);
    if (victim == nullptr || eviction_rank(entry) < eviction_rank(*victim)) victim = &entry;
  }
  PBOX_DCHECK(victim != nullptr);
  const bool evicts = victim->content().is_live(now_ns);
  victim->write(key, {.neighbour = 0, .confirmed_ns = now_ns});
  if (evicts) {
    evicted_.fetch_add(1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  return victim->answer_lookup(victim->content(), now_ns);
}

void NeighbourTable::learn(std::span<const std::byte> frame, const Interface& interface,
                           const MacAddress& own_mac, uint16_t link, uint64_t now_ns) {
  PBOX_DCHECK(now_ns != 0);
  const auto claim = read_claim(frame, interface, own_mac);
  if (!claim) return;
  const Writer writer(*this);
  if (!writer) return;
  PBOX_DCHECK(is_unicast(claim->mac));
  const Key key(claim->address);
  Entry* entry = nullptr;
  for (Entry& candidate : set_of(key)) {
    const bool same = candidate.has(key);
    if (same || (claim->is_request_to_us && candidate.is_reusable(now_ns))) entry = &candidate;
    if (same) break;
  }
  if (entry == nullptr) return;

  const uint64_t neighbour = pack({.mac = claim->mac, .link = link});
  const Entry::Content known = entry->content();
  const bool live = known.is_live(now_ns);
  const bool changes = !live || known.neighbour != neighbour;
  if (live && changes && !claim->may_replace) return;
  entry->write(key, {.neighbour = neighbour, .confirmed_ns = now_ns});
  if (!changes) return;
  (live ? moved_ : learned_).fetch_add(1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
}

NeighbourCounters NeighbourTable::counters() const {
  return {.learned = learned_.load(std::memory_order_relaxed),
          .moved = moved_.load(std::memory_order_relaxed),
          .evicted = evicted_.load(std::memory_order_relaxed),
          .contended = contended_.load(std::memory_order_relaxed)};
}

}  // namespace pbox::nic
