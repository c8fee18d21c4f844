// A ring of packets in memory that two processes share. One end writes it, and the other reads it.
// Each end has a segment: a head with its positions, and the ring that it writes. The other end has
// the segment mapped read-only, and trusts nothing in it: an end that breaks the rules breaks its
// own lane.
//
// Rings are mapped twice, one copy behind the other, so that a packet never has to be split where
// the ring ends. Pure.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/limits.h"
#include "base/numa_arena.h"
#include "nic/port.h"

namespace pbox::nic {

// The start of a segment. Only its own end writes it. It begins as all zeros, which is a valid
// state.
struct SegmentHead {
  // Bytes of records that this end has written to its ring since the start.
  alignas(kCacheLineBytes) std::atomic<uint64_t> written;
  // Bytes of records of the other end's ring that this end no longer needs.
  alignas(kCacheLineBytes) std::atomic<uint64_t> released;
  // Grows by one when this end wakes up, and by one when it goes to sleep. So it is odd while this
  // end is awake, and even while it sleeps or has not begun.
  alignas(kCacheLineBytes) std::atomic<uint32_t> wakes;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A record is a packet in a ring. It begins with the packet's length in 4 bytes. The header lies at
// kPacketOffset, so that the payload and the tag behind it begin on a cache line. If the payload
// stays in other memory that both ends have mapped (lane.h), its offset there, in 8 bytes, takes
// its place, and the length has the bit kIsElsewhere. Records are whole cache lines.
inline constexpr uint32_t kPacketOffset = kCacheLineBytes - limits::kHeaderBytes;
inline constexpr uint32_t kIsElsewhere = 1u << 31;
inline constexpr uint32_t kPlaceBytes = sizeof(uint64_t);
constexpr uint64_t ring_record_bytes(uint32_t packet_bytes) {
  return (kPacketOffset + packet_bytes + kCacheLineBytes - 1) & ~uint64_t{kCacheLineBytes - 1};
}
inline constexpr uint64_t kPlaceRecordBytes =
    ring_record_bytes(limits::kPacketOverheadBytes + kPlaceBytes);
inline constexpr uint64_t kRingRecordBytesMax = ring_record_bytes(limits::kPacketBytesMax);

// Sizes of a ring: powers of two, so that a position needs no division.
inline constexpr uint64_t kRingBytesMin = 128 << 10;
inline constexpr uint64_t kRingBytesMax = 8 << 20;
static_assert(kRingBytesMin >= 2 * kRingRecordBytesMax);
constexpr bool is_ring_size(uint64_t bytes) {
  return bytes >= kRingBytesMin && bytes <= kRingBytesMax && std::has_single_bit(bytes);
}

// The end that writes. One thread.
class RingWriter {
 public:
  // `ring`: the first of the ring's two mappings, of `ring_bytes` each.
  RingWriter(SegmentHead& own, const SegmentHead& other, std::byte* ring, uint64_t ring_bytes)
      : own_(own), other_(other), ring_(ring), ring_bytes_(ring_bytes) {
    PBOX_CHECK(is_ring_size(ring_bytes));
  }

  // Appends a packet. The reader sees it after publish(). Returns false if there is no room.
  bool put(const TxPacket& packet) {
    PBOX_DCHECK(packet.payload != nullptr || packet.header.payload_bytes == 0);
    const uint32_t bytes = limits::kPacketOverheadBytes + packet.header.payload_bytes;
    std::byte* const payload = begin(packet.header, bytes, ring_record_bytes(bytes));
    if (payload == nullptr) return false;
    if (packet.header.payload_bytes > 0) {
      std::memcpy(payload, packet.payload, packet.header.payload_bytes);
    }
    std::memcpy(payload + packet.header.payload_bytes, packet.tag.data(), packet.tag.size());
    return true;
  }
  // Does what put() does, but the payload stays where it is, at this offset in the memory that both
  // ends have mapped.
  bool put_place(const TxPacket& packet, uint64_t offset) {
    PBOX_DCHECK(packet.payload != nullptr);
    const uint32_t bytes = limits::kPacketOverheadBytes + packet.header.payload_bytes;
    std::byte* const place = begin(packet.header, bytes | kIsElsewhere, kPlaceRecordBytes);
    if (place == nullptr) return false;
    std::memcpy(place, &offset, sizeof(offset));
    std::memcpy(place + sizeof(offset), packet.tag.data(), packet.tag.size());
    return true;
  }
  void publish() {
    PBOX_DCHECK(written_ - released_ <= ring_bytes_);
    own_.written.store(written_, std::memory_order_seq_cst);  // before RingSleep::must_wake() looks
  }

  // Returns whether the reader has claimed to have read what was never written.
  bool is_broken() const { return is_broken_; }

 private:
  // Begins a record, and returns where its payload goes; null if there is no room.
  std::byte* begin(const wire::Header& header, uint32_t length, uint64_t record) {
    PBOX_DCHECK(record <= kRingRecordBytesMax);
    if (written_ + record - released_ > ring_bytes_) [[unlikely]] {
      if (!refresh() || written_ + record - released_ > ring_bytes_) return nullptr;
    }
    std::byte* const at = ring_ + (written_ & (ring_bytes_ - 1));
    std::memcpy(at, &length, sizeof(length));
    std::memcpy(at + kPacketOffset, &header, limits::kHeaderBytes);
    written_ += record;
    return at + kCacheLineBytes;
  }
  // Loads the reader's position. Returns false if it is impossible.
  bool refresh() {
    const uint64_t released = other_.released.load(std::memory_order_acquire);
    is_broken_ = is_broken_ || released - released_ > written_ - released_;
    if (is_broken_) return false;
    released_ = released;
    PBOX_DCHECK(written_ - released_ <= ring_bytes_);
    return true;
  }

  SegmentHead& own_;
  const SegmentHead& other_;
  std::byte* ring_;
  uint64_t ring_bytes_;
  uint64_t written_ = 0;
  uint64_t released_ = 0;  // the reader's position when it was last loaded
  bool is_broken_ = false;
};

// The end that reads. One thread.
class RingReader {
 public:
  // `ring`: the first of the two mappings of the writer's ring.
  RingReader(SegmentHead& own, const SegmentHead& other, const std::byte* ring, uint64_t ring_bytes)
      : own_(own), other_(other), ring_(ring), ring_bytes_(ring_bytes) {
    PBOX_CHECK(is_ring_size(ring_bytes));
  }

  // A packet in the ring. The writer may change its bytes at any time, if it is malicious.
  struct Packet {
    const std::byte* header = nullptr;
    const std::byte* payload = nullptr;  // null: the payload is in other memory, at `offset`
    const std::byte* tag = nullptr;
    uint64_t offset = 0;
    uint32_t bytes = 0;  // in [limits::kPacketOverheadBytes, limits::kPacketBytesMax]
  };

  // Returns the next packet, which stays valid until release(), or nothing.
  std::optional<Packet> next() {
    if (read_ == written_ && !refresh()) return std::nullopt;
    const std::byte* const at = ring_ + (read_ & (ring_bytes_ - 1));
    const uint32_t length =
        __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_RELAXED);
    const bool is_elsewhere = (length & kIsElsewhere) != 0;
    const uint32_t bytes = length & ~kIsElsewhere;
    const uint64_t record = is_elsewhere ? kPlaceRecordBytes : ring_record_bytes(bytes);
    if (bytes < limits::kPacketOverheadBytes || bytes > limits::kPacketBytesMax ||
        record > written_ - read_) [[unlikely]] {
      refuse();
      return std::nullopt;
    }
    read_ += record;
    PBOX_DCHECK(written_ - read_ <= ring_bytes_);
    Packet packet{.header = at + kPacketOffset, .bytes = bytes};
    const std::byte* const rest = at + kCacheLineBytes;
    if (is_elsewhere) {
      std::memcpy(&packet.offset, rest, sizeof(packet.offset));
      packet.tag = rest + kPlaceBytes;
    } else {
      packet.payload = rest;
      packet.tag = rest + bytes - limits::kPacketOverheadBytes;
    }
    return packet;
  }
  // Records that the writer has broken the rules. There are no more packets then.
  void refuse() {
    is_broken_ = true;
    read_ = written_;
  }
  // Gives the room of all packets that next() has returned back to the writer.
  void release() {
    if (released_ == read_) return;
    PBOX_DCHECK(read_ - released_ <= ring_bytes_ && written_ - read_ <= ring_bytes_);
    released_ = read_;
    own_.released.store(read_, std::memory_order_release);
  }
  // Returns whether next() would return nothing. Its load is ordered after RingSleep::begin().
  bool is_empty() const {
    if (is_broken_) return true;
    return read_ == written_ && other_.written.load(std::memory_order_seq_cst) == written_;
  }
  // Returns whether the writer has broken the rules.
  bool is_broken() const { return is_broken_; }

 private:
  // Loads the writer's position. Returns whether there are new packets.
  bool refresh() {
    if (is_broken_) return false;
    const uint64_t written = other_.written.load(std::memory_order_acquire);
    is_broken_ = written - released_ > ring_bytes_ || written - released_ < written_ - released_;
    if (is_broken_ || written == written_) return false;
    written_ = written;
    return true;
  }

  SegmentHead& own_;
  const SegmentHead& other_;
  const std::byte* ring_;
  uint64_t ring_bytes_;
  uint64_t read_ = 0;
  uint64_t released_ = 0;
  uint64_t written_ = 0;  // the writer's position when it was last loaded
  bool is_broken_ = false;
};

// Tells the writer that the reader sleeps, so that the writer makes a system call to wake it only
// then. The reader calls begin(), sleeps if its ring is still empty, and then calls end(). The
// writer calls publish() and then must_wake(). At least one of the two sees what the other has
// done.
class RingSleep {
 public:
  RingSleep(SegmentHead& own, const SegmentHead& other) : own_(own), other_(other) {}

  void begin() {
    const uint32_t wakes = own_.wakes.load(std::memory_order_relaxed);
    if ((wakes & 1) != 0) own_.wakes.store(wakes + 1, std::memory_order_seq_cst);
  }
  void end() {
    const uint32_t wakes = own_.wakes.load(std::memory_order_relaxed);
    if ((wakes & 1) == 0) own_.wakes.store(wakes + 1, std::memory_order_relaxed);
  }

  // Returns whether the other end sleeps and was not woken yet.
  bool must_wake() {
    const uint32_t wakes = other_.wakes.load(std::memory_order_seq_cst);
    if ((wakes & 1) != 0 || (has_woken_ && wakes == woken_)) return false;
    has_woken_ = true;
    woken_ = wakes;
    return true;
  }

 private:
  SegmentHead& own_;
  const SegmentHead& other_;
  uint32_t woken_ = 0;  // the other end's `wakes` when it was last woken
  bool has_woken_ = false;
};

}  // namespace pbox::nic
