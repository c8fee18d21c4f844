// The writing end of a flight recorder: the newest records of one pipeline. The caller owns the
// memory, a mapped file, which survives a crash of the process.
//
// The pipeline's core writes. A reader copies the ring first, and then takes the records that
// cannot have been overwritten meanwhile (flight_image.h). Nothing here allocates, locks or calls
// the kernel.
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
  // `memory` begins with a head that make_flight_head() has written, is as large as its capacity
  // says, and outlives this. Empty: the recorder is off.
  explicit FlightRing(std::span<std::byte> memory);
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  uint64_t written() const { return written_; }
  uint64_t capacity() const { return mask_ + 1; }
  bool is_enabled() const { return records_ != &spare_; }

  // Records a packet before anything is done with it, so that a packet that crashes the process is
  // the last record. The caller sets the verdict later.
  [[gnu::always_inline]] inline FlightRecord& add_packet(const nic::RxPacket& packet,
                                                         uint64_t now_ns) {
    PBOX_DCHECK((mask_ & (mask_ + 1)) == 0);
    FlightRecord& record = records_[written_ & mask_];
    set_start(record, FlightKind::kPacket, packet.bytes, now_ns);
    if (packet.bytes >= sizeof(wire::Header)) [[likely]] {
      std::memcpy(record.body, packet.data, sizeof(wire::Header));
    } else {
      std::memset(record.body, 0, sizeof(wire::Header));
      if (packet.bytes > 0) std::memcpy(record.body, packet.data, packet.bytes);
    }
    publish();
    return record;
  }

  template <typename Body>
  void add(FlightKind kind, uint32_t subject, uint64_t now_ns, const Body& body) {
    static_assert(sizeof(Body) == kFlightBodyBytes);
    PBOX_DCHECK(kind != FlightKind::kNone && kind != FlightKind::kPacket);
    FlightRecord& record = records_[written_ & mask_];
    set_start(record, kind, subject, now_ns);
    std::memcpy(record.body, &body, sizeof(body));
    publish();
  }

 private:
  static void set_start(FlightRecord& record, FlightKind kind, uint32_t subject, uint64_t now_ns) {
    record.kind = kind;
    record.verdict = Verdict::kPending;
    record.unused = 0;
    record.subject = subject;
    record.at_ns = now_ns;
  }
  void publish() {
    PBOX_DCHECK(published_ != nullptr && written_ != UINT64_MAX);
    ++written_;
    published_->store(written_, std::memory_order_release);
  }

  FlightRecord spare_;  // the whole ring while the recorder is off
  std::atomic<uint64_t> spare_published_{0};
  FlightRecord* records_ = &spare_;
  std::atomic<uint64_t>* published_ = &spare_published_;
  uint64_t mask_ = 0;
  uint64_t written_ = 0;
};

}  // namespace pbox::pipeline
