// The times at which the rounds of a job's chunks passed each stage of one pipeline. Recorded on
// request, for a bounded time and in bounded memory.
//
// The control thread makes a trace, hands it to the pipeline by a command, and takes it back by
// another. In between only the pipeline touches it. Nothing here locks, and nothing allocates once
// the trace is made.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "nic/wire/header.h"

namespace pbox::pipeline {

struct TraceEvent {
  enum class Kind : uint8_t {
    kFirst,  // the rank's first fragment of the round arrived
    kLast,   // the rank's last fragment arrived
    kFull,   // all ranks' fragments have arrived, or the round closed without some of them
    kSent,   // the result's last packet for the last rank is ready for the port
    // Only in relaxed shards, which answer each rank separately. They have no kSent.
    kParked,    // the rank's read waits for slower ranks
    kReleased,  // the read waits no longer; a cached read has this event even if it did not wait
    kReplied,   // the last packet of a reply to the rank is ready for the port
  };
  uint64_t at_ns = 0;  // on the trace's clock
  uint32_t chunk = 0;  // job-local id
  // Modulo 2^32, as on the wire. If ranks have own rounds, it is the rank's round. For kFull, and
  // for replies that are sent unasked, it is the newest round that all ranks have pushed.
  uint32_t round = 0;
  uint32_t rank = 0;  // undefined for kFull and kSent
  Kind kind = Kind::kFirst;
};

class RoundTrace {
 public:
  using Clock = uint64_t (*)();

  // Keeps the first `capacity` events until `until_ns` on `clock`. The trace has its own clock,
  // because the engine's time is the same for all packets of a turn.
  RoundTrace(size_t capacity, uint64_t until_ns, Clock clock)
      : capacity_(capacity), until_ns_(until_ns), clock_(clock) {
    PBOX_DCHECK(clock != nullptr);
    events_.resize(capacity);  // touches the memory, so that the pipeline need not
    events_.clear();
  }
  // By chunk index in the shard: the first traced round. Earlier ones began before the trace.
  std::vector<uint32_t>& first_rounds() { return first_rounds_; }

  uint64_t now_ns() const { return clock_(); }
  uint64_t until_ns() const { return until_ns_; }
  void add(uint32_t chunk_index, const TraceEvent& event) {
    PBOX_DCHECK(chunk_index < first_rounds_.size());
    PBOX_DCHECK(events_.size() <= capacity_);
    if (wire::round_distance(event.round, first_rounds_[chunk_index]) < 0) return;
    if (events_.size() == capacity_) {
      ++lost_;
    } else {
      PBOX_DCHECK(events_.capacity() >= capacity_);
      events_.push_back(event);
    }
  }

  // Each rank's own events are in order. In a round, kLast of the last rank comes after kFull,
  // though its time is not later.
  const std::vector<TraceEvent>& events() const { return events_; }
  uint64_t lost() const { return lost_; }  // events dropped because the trace was full

 private:
  size_t capacity_;
  uint64_t until_ns_;
  Clock clock_;
  std::vector<uint32_t> first_rounds_;
  std::vector<TraceEvent> events_;
  uint64_t lost_ = 0;
};

}  // namespace pbox::pipeline
