// Protects the packets of one session on one pipeline, at one of its ends: numbers and seals what
// this end sends, and opens what the other end has sent.
//
// Without keys the tag is a checksum, and a packet that arrives twice is opened twice. With keys
// only the other end can have made a packet that opens, and it opens once.
//
// Keys are updated much as in QUIC (RFC 9001, section 6). One end, the box, begins after a number
// of packets or a time, and seals with the next generation of keys. The worker follows, in both
// directions, with the first packet that opens with that generation. The box begins again only when
// a packet shows that the worker has followed, so the ends are never more than one generation
// apart, whatever is lost. A bit in the header (flag::kKeyPhase) is the lowest bit of the
// generation. Packets of the generation before open for one to two seconds longer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/limits.h"
#include "base/numa_arena.h"
#include "nic/port.h"
#include "nic/seal/packet_cipher.h"
#include "nic/seal/replay_window.h"
#include "nic/wire/tag.h"

namespace pbox::seal {

struct KeyUpdates {
  // A key seals this many packets of either end before the next one takes its place. If the other
  // end does not follow, it seals more, but no more than NIST SP 800-38D, section 8.3, allows with
  // nonces of 96 bits. After that the session cannot send.
  static constexpr uint64_t kPacketsMax = uint64_t{1} << 31;
  static constexpr uint64_t kPacketsLimit = uint64_t{1} << 32;
  uint64_t packets = kPacketsMax;
  uint64_t time_ns = 24 * 3600 * kNanosPerSecond;
};

// One thread at a time, except where a declaration says otherwise.
class SessionSeal {
 public:
  // Without keys.
  SessionSeal() = default;
  // `encrypts`: the ciphers encrypt payloads. `updates`: when this end begins to update keys;
  // nothing if the other end does.
  SessionSeal(std::unique_ptr<KeyChain> sending, std::unique_ptr<KeyChain> receiving, bool encrypts,
              const std::optional<KeyUpdates>& updates);

  // Returns a seal that opens no packet. It must not be used to send.
  static SessionSeal closed();

  bool has_keys() const { return keys_ != nullptr; }
  // Whether payloads leave encrypted. Then seal() needs room for a payload, and so does open().
  bool encrypts() const { return keys_ != nullptr && keys_->encrypts; }

  // Numbers a packet and returns its tag. `words` is its header, complete but for the number and
  // the flags of keys; `payload` points to its `bytes`. With a session that encrypts, the payload
  // is written to `room`, to which `payload` points afterwards. `policy` applies only without keys.
  wire::Tag seal(const wire::TagPolicy& policy, wire::HeaderWords& words, const std::byte*& payload,
                 size_t bytes, std::byte* room) {
    static_assert(offsetof(wire::Header, packet_number) == sizeof(words[0]));
    words[1] = next_number_++;
    PBOX_DCHECK(next_number_ > 1);
    if (keys_ == nullptr) return wire::make_tag(policy, words, payload, bytes);
    return seal_with_keys(words, payload, bytes, room);
  }
  // Numbers the next `count` packets, whose tags the caller makes. Returns the first number. Only
  // without keys.
  uint64_t take_numbers(size_t count) {
    PBOX_DCHECK(keys_ == nullptr);
    const uint64_t first = next_number_;
    next_number_ += count;
    return first;
  }
  // As seal() above, for a whole packet, whose header has the payload's length.
  void seal(const wire::TagPolicy& policy, nic::TxPacket& packet, std::byte* room);

  // With keys, returns whether the other end has made this packet and it is new. Without keys,
  // returns whether its checksum is right. Only for a packet that wire::parse() accepted. With a
  // session that encrypts, the payload is written to `room`, which has limits::kFragmentBytesMax
  // bytes, and `parsed` points to it afterwards.
  bool open(const wire::TagPolicy& policy, wire::Parsed& parsed, std::byte* room) {
    if (keys_ == nullptr) [[likely]] {
      return (parsed.header.flags & kKeyFlags) == 0 && wire::verify_tag(policy, parsed);
    }
    wire::Parsed copy = parsed;  // without keys, the packet at hand may stay in registers
    const bool is_open = open_with_keys(copy, room);
    parsed.payload = copy.payload;
    return is_open;
  }

  // Starts the update that is due by time, and forgets keys that are no longer of use. Called about
  // every second; does nothing if it is called earlier.
  void tick(uint64_t now_ns) {
    if (keys_ != nullptr && now_ns >= keys_->next_tick_ns) take_tick(now_ns);
  }

  // The number of the next packet that this end sends.
  uint64_t next_number() const { return next_number_; }
  // Generations of keys that have followed the first one.
  uint64_t updates_sent() const { return keys_ == nullptr ? 0 : keys_->sending.generation; }
  uint64_t updates_received() const { return keys_ == nullptr ? 0 : keys_->receiving.generation; }
  // Returns whether packets of the generation before the present one still open.
  bool opens_before() const { return keys_ != nullptr && keys_->receiving.has_before; }

 private:
  static constexpr uint8_t kKeyFlags = wire::flag::kEncrypted | wire::flag::kKeyPhase;

  struct Sending {
    std::unique_ptr<KeyChain> chain;
    uint64_t generation = 0;
    uint64_t limit_at = 0;  // the first packet number that the present keys must not seal
    // The first packet number for which the next generation is due, at most limit_at.
    uint64_t update_at = 0;
    uint64_t update_at_ns = 0;
  };
  struct Receiving {
    std::unique_ptr<KeyChain> chain;
    uint64_t generation = 0;
    uint64_t first_number = 0;  // number of the packet that began the generation
    uint64_t update_at = 0;     // the next generation is due when this number arrives
    bool has_before = false;    // packets of the generation before still open
    bool forgets_before = false;
    ReplayWindow window;
  };
  struct Keys {
    bool encrypts = false;
    std::optional<KeyUpdates> updates;
    uint64_t next_tick_ns = 0;
    Sending sending;
    Receiving receiving;
  };

  wire::Tag seal_with_keys(wire::HeaderWords& words, const std::byte*& payload, size_t bytes,
                           std::byte* room);
  wire::Tag refuse_to_seal(const std::byte*& payload, size_t bytes, std::byte* room);
  bool open_with_keys(wire::Parsed& parsed, std::byte* room);
  void take_tick(uint64_t now_ns);
  void begin_generation(uint64_t first_number);
  void update_sending(uint64_t first_number);
  void note_update_due();

  uint64_t next_number_ = 1;
  std::unique_ptr<Keys> keys_;
};

inline std::shared_ptr<SessionSeal> make_seal_without_keys() {
  return std::make_shared<SessionSeal>();
}

// Room for the payload of the packet at hand, once it is decrypted.
struct alignas(kCacheLineBytes) OpenRoom {
  std::byte* data() { return bytes.data(); }
  std::array<std::byte, limits::kFragmentBytesMax> bytes;
};

// Room for the encrypted payloads of one burst. Empty until a session that encrypts needs it.
class SealRoom {
 public:
  void make() {
    if (bytes_ != nullptr) return;
    constexpr size_t kBytes = limits::kBurstPackets * limits::kFragmentBytesMax;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
  }
  // Returns the room for the packet at this index of the burst; null until make() is called.
  std::byte* at(size_t index) {
    PBOX_DCHECK(index < limits::kBurstPackets);
    return bytes_ == nullptr ? nullptr : bytes_.get() + index * limits::kFragmentBytesMax;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace pbox::seal
