// Protects the packets of one session on one pipeline, at one of its ends: numbers and seals the
// packets that this end sends, and opens those that the other end has sent.
//
// Without keys the tag is a checksum, and a packet that arrives twice is opened twice. With keys
// only a packet that the other end has made can be opened, and only once.
//
// Keys are updated much as in QUIC (RFC 9001, section 6). The box begins an update after a number
// of packets or some time, and then seals with the next generation of keys. The worker follows, in
// both directions, after the first packet that it has opened with that generation. The box begins
// another update only when a packet shows that the worker has followed, so the ends are never more
// than one generation apart, whatever packets are lost. A bit in the header (flag::kKeyPhase) is
// the lowest bit of the generation. Packets of the generation before can still be opened for one to
// two seconds.
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
  // An update begins after this many packets that this end has sealed with a key, or opened with
  // one. Numbers that the other end skips do not count: it could otherwise force updates. If the
  // other end does not follow, the key seals more, up to the limit of NIST SP 800-38D, section 8.3,
  // for nonces of 96 bits. After that the session cannot send.
  static constexpr uint64_t kPacketsMax = uint64_t{1} << 31;
  static constexpr uint64_t kPacketsLimit = uint64_t{1} << 32;
  uint64_t packets = kPacketsMax;                  // begin an update after this many packets
  uint64_t time_ns = 24 * 3600 * kNanosPerSecond;  // or after this time
};

// Used by one thread at a time.
class SessionSeal {
 public:
  // Makes a seal without keys.
  SessionSeal() = default;
  // Makes a seal with keys. `encrypts`: the ciphers encrypt payloads. `updates`: when this end
  // begins to update keys; nullopt if the other end begins updates.
  SessionSeal(std::unique_ptr<KeyChain> sending, std::unique_ptr<KeyChain> receiving, bool encrypts,
              const std::optional<KeyUpdates>& updates);

  // Returns a seal that opens no packet. It must not be used to send.
  static SessionSeal closed();

  bool has_keys() const { return keys_ != nullptr; }
  // Returns whether payloads are encrypted. If so, seal() and open() need room for a payload.
  bool encrypts() const { return keys_ != nullptr && keys_->encrypts; }

  // Numbers a packet and returns its tag. `words` is its header, complete except for the number and
  // the flags of keys. `payload` points to `bytes` bytes. If the session encrypts, the encrypted
  // payload is written to `room`, and `payload` points to it afterwards. `policy` applies only
  // without keys.
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
  // Does what seal() above does, for a whole packet. Its header has the payload's length.
  void seal(const wire::TagPolicy& policy, nic::TxPacket& packet, std::byte* room);

  // With keys, returns whether the other end has made this packet and it is new. Without keys,
  // returns whether its checksum is right. Only for a packet that wire::parse() has accepted. If
  // the session encrypts, the decrypted payload is written to `room`, which has
  // limits::kFragmentBytesMax bytes, and `parsed` points to it afterwards.
  bool open(const wire::TagPolicy& policy, wire::Parsed& parsed, std::byte* room) {
    if (keys_ == nullptr) [[likely]] {
      return (parsed.header.flags & kKeyFlags) == 0 && wire::verify_tag(policy, parsed);
    }
    wire::Parsed copy = parsed;  // so that without keys, `parsed` may stay in registers
    const bool is_open = open_with_keys(copy, room);
    parsed.payload = copy.payload;
    return is_open;
  }

  // Starts an update that is due by time, and forgets keys that are no longer needed. May be called
  // at any rate; does nothing until a second has passed since it last did something.
  void tick(uint64_t now_ns) {
    if (keys_ != nullptr && now_ns >= keys_->next_tick_ns) take_tick(now_ns);
  }

  // Returns the number of the next packet that this end sends.
  uint64_t next_number() const { return next_number_; }
  // Return the number of key updates of each direction since the session began.
  uint64_t updates_sent() const { return keys_ == nullptr ? 0 : keys_->sending.generation; }
  uint64_t updates_received() const { return keys_ == nullptr ? 0 : keys_->receiving.generation; }
  // Returns whether packets of the generation before the present one can still be opened.
  bool opens_before() const { return keys_ != nullptr && keys_->receiving.has_before; }

 private:
  static constexpr uint8_t kKeyFlags = wire::flag::kEncrypted | wire::flag::kKeyPhase;

  struct Sending {
    std::unique_ptr<KeyChain> chain;
    uint64_t generation = 0;
    uint64_t limit_at = 0;      // the first packet number that the present keys must not seal
    uint64_t update_at = 0;     // an update is due from this packet number on; at most limit_at
    uint64_t update_at_ns = 0;  // an update is due from this time on; 0: not set yet
  };
  struct Receiving {
    std::unique_ptr<KeyChain> chain;
    uint64_t generation = 0;
    uint64_t first_number = 0;    // number of the packet that began the generation
    uint64_t until_update = 0;    // an update is due once this many more packets have opened
    bool has_before = false;      // packets of the generation before can still be opened
    bool forgets_before = false;  // the next tick forgets the generation before
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

// Room for the decrypted payload of one packet.
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
