// The writing end of a flight recorder: the newest records of one pipeline. The caller owns the
// memory, which is a mapped file and so survives a crash of the process.
//
// The pipeline's core writes. A reader first copies the ring, and then takes the records that
// cannot have been overwritten meanwhile (flight_image.h). The newest record may be replaced in
// place. Nothing here allocates, locks or calls the kernel.
#pragma once

#include <bit>
#include <cstring>
#include <span>

#include "base/check.h"
#include "nic/port.h"
#include "pipeline/observe/flight_record.h"

namespace pbox::pipeline {

class FlightRing {
 public:
  // `memory` begins with a head that make_flight_head() has written, has the size that the head's
  // capacity needs, and outlives this. If it is empty, the recorder is off.
  explicit FlightRing(std::span<std::byte> memory);
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  uint64_t written() const { return written_; }
  uint64_t capacity() const { return mask_ + 1; }
  bool is_enabled() const { return records_ != &spare_; }

  // Records a packet before the engine looks at it, so that a packet that crashes the process is
  // the last record. The caller sets the verdict later.
  [[gnu::always_inline]] inline FlightRecord& add_packet(const nic::RxPacket& packet,
                                                         uint64_t now_ns) {
    PBOX_DCHECK((mask_ & (mask_ + 1)) == 0);
    FlightRecord& record = begin(packet.bytes, now_ns);
    if (packet.bytes >= sizeof(wire::Header)) [[likely]] {
      std::memcpy(record.body, packet.data, sizeof(wire::Header));
    } else {
      std::memset(record.body, 0, sizeof(wire::Header));
      if (packet.bytes > 0) std::memcpy(record.body, packet.data, packet.bytes);
    }
    publish(record, FlightKind::kPacket);
    return record;
  }

  // Returns the newest record; there must be one.
  FlightRecord& newest() {
    PBOX_DCHECK(written_ > 0 && !replaces_newest_);
    return records_[(written_ - 1) & mask_];
  }

  // Makes the next record replace the newest one.
  void replace_newest() {
    PBOX_DCHECK(written_ > 0);
    replaces_newest_ = true;
  }

  template <typename Body>
  void add(FlightKind kind, uint32_t subject, uint64_t now_ns, const Body& body) {
    static_assert(sizeof(Body) == kFlightBodyBytes);
    PBOX_DCHECK(kind != FlightKind::kNone && kind != FlightKind::kPacket);
    FlightRecord& record = begin(subject, now_ns);
    std::memcpy(record.body, &body, sizeof(body));
    publish(record, kind);
  }

 private:
  FlightRecord& begin(uint32_t subject, uint64_t now_ns) {
    if (replaces_newest_) [[unlikely]] {
      replaces_newest_ = false;
      --written_;
      // The record is published already. Until it is complete, its kind says so.
      std::atomic_ref(records_[written_ & mask_].kind).exchange(FlightKind::kNone);
    }
    FlightRecord& record = records_[written_ & mask_];
    record.verdict = Verdict::kPending;
    record.unused = 0;
    record.subject = subject;
    record.at_ns = now_ns;
    return record;
  }
  void publish(FlightRecord& record, FlightKind kind) {
    PBOX_DCHECK(published_ != nullptr && written_ != UINT64_MAX);
    std::atomic_ref(record.kind).store(kind, std::memory_order_release);
    ++written_;
    published_->store(written_, std::memory_order_release);
  }

  FlightRecord spare_;  // serves as a ring of one record while the recorder is off
  std::atomic<uint64_t> spare_published_{0};
  FlightRecord* records_ = &spare_;
  std::atomic<uint64_t>* published_ = &spare_published_;
  uint64_t mask_ = 0;
  uint64_t written_ = 0;
  bool replaces_newest_ = false;
};

}  // namespace pbox::pipeline
