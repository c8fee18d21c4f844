// One end of a lane of shared memory: it sends packets to the other end and receives packets from
// it.
#pragma once

#include <optional>
#include <utility>

#include "base/descriptor.h"
#include "base/memory_file.h"
#include "nic/shm/ring.h"
#include "nic/shm/segment.h"

namespace pbox::nic {

// Payloads of up to this many bytes are always copied: a copy costs less than the cache misses of
// reading them in place.
inline constexpr uint32_t kLaneCopiedBytesMax = 512;

// Memory of one end, in a file that the other end has mapped. Payloads there stay where they are:
// only their offsets go through the ring. They must not change until the other end no longer needs
// them, as with any port that reads in place (nic/port.h).
struct LaneMemory {
  const std::byte* data = nullptr;  // null: there is none
  size_t bytes = 0;

  bool has(const std::byte* payload, size_t payload_bytes) const {
    const auto offset = reinterpret_cast<uintptr_t>(payload) - reinterpret_cast<uintptr_t>(data);
    return offset < bytes && payload_bytes <= bytes - offset;
  }
};

// The control thread creates and destroys it. In between, only one thread uses it.
class ShmLane {
 public:
  // `connection`: the UNIX socket to the other end. `bell`: an eventfd that wakes the other end.
  // Without one, a byte on the connection wakes it. The box wakes workers with such a byte, because
  // a worker that shares an eventfd can make writes to it block. Both segments have rings of the
  // same size. `own_memory` outlives the lane; `other_memory` is the other end's.
  ShmLane(OwnSegment own, OtherSegment other, Descriptor connection, Descriptor bell = Descriptor(),
          LaneMemory own_memory = {}, Mapping other_memory = {})
      : own_(std::move(own)),
        other_(std::move(other)),
        connection_(std::move(connection)),
        other_memory_(std::move(other_memory)),
        bell_(std::move(bell)),
        own_memory_(own_memory),
        writer_(own_.head(), other_.head(), own_.ring(), own_.ring_bytes()),
        reader_(own_.head(), other_.head(), other_.ring(), other_.ring_bytes()),
        sleep_(own_.head(), other_.head()) {}
  // Tells the other end that the lane is closed.
  ~ShmLane();
  ShmLane(const ShmLane&) = delete;
  ShmLane& operator=(const ShmLane&) = delete;

  int connection() const { return connection_.get(); }
  RingReader& reader() { return reader_; }

  // Does what RingReader::next() does, and also sets the payload if it lies in the other end's
  // memory.
  std::optional<RingReader::Packet> next() {
    auto packet = reader_.next();
    if (!packet || packet->payload != nullptr) return packet;
    const uint64_t payload_bytes = packet->bytes - limits::kPacketOverheadBytes;
    const uint64_t bytes = other_memory_.size();
    if (packet->offset >= bytes || payload_bytes > bytes - packet->offset) [[unlikely]] {
      reader_.refuse();
      return std::nullopt;
    }
    PBOX_DCHECK(other_memory_.data() != nullptr);
    packet->payload = other_memory_.data() + packet->offset;
    return packet;
  }

  // Returns false, and drops the packet, if the other end's ring is full.
  bool put(const TxPacket& packet) {
    const bool is_large = packet.header.payload_bytes > kLaneCopiedBytesMax;
    if (!is_large || !stays(packet)) {
      copies_ += is_large ? 1 : 0;
      return writer_.put(packet);
    }
    ++places_;
    PBOX_DCHECK(packet.payload >= own_memory_.data);
    return writer_.put_place(packet, static_cast<uint64_t>(packet.payload - own_memory_.data));
  }
  // Payloads of more than kLaneCopiedBytesMax bytes that put() has left in place, or copied.
  uint64_t places() const { return places_; }
  uint64_t copies() const { return copies_; }
  // Shows the other end the packets that were put, and wakes it if it sleeps.
  void publish() {
    PBOX_DCHECK(connection_.ok());
    writer_.publish();
    if (sleep_.must_wake()) [[unlikely]]
      ring();
  }
  // Releases the received packets. Call it before this end waits for the descriptor that the other
  // end's bell makes readable. Returns false if new packets are there: then this end must not wait.
  bool begin_sleep() {
    reader_.release();
    sleep_.begin();
    return reader_.is_empty();
  }
  void end_sleep() { sleep_.end(); }

  // Returns whether the other end has broken the rules of the rings.
  bool is_broken() const { return reader_.is_broken() || writer_.is_broken(); }

 private:
  void ring() const;
  // Returns whether the payload may stay where it is. The payload of a retransmission is copied:
  // the other end may have received the original, so the memory may change before it reads the
  // retransmission.
  bool stays(const TxPacket& packet) const {
    const wire::PacketType type = packet.header.type();
    return (type == wire::PacketType::kPush || type == wire::PacketType::kResult) &&
           (packet.header.flags & wire::flag::kRetransmission) == 0 &&
           own_memory_.has(packet.payload, packet.header.payload_bytes);
  }

  OwnSegment own_;
  OtherSegment other_;
  // Declared before the mapping, so that it is closed after the other end's memory is unmapped. The
  // other end waits for that.
  Descriptor connection_;
  Mapping other_memory_;
  Descriptor bell_;  // none: a byte on the connection wakes the other end
  LaneMemory own_memory_;
  uint64_t places_ = 0, copies_ = 0;
  RingWriter writer_;
  RingReader reader_;
  RingSleep sleep_;
};

}  // namespace pbox::nic
