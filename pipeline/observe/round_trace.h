// When the rounds of a job's chunks passed which point of their way through one pipeline: kept
// while somebody has asked for it, and no more of it than there is room for.
//
// Made by the control thread, handed to the pipeline by a command and had back by another; in
// between it is the pipeline's. Nothing here allocates once it is made, nor locks.
#pragma once

#include <cstdint>
#include <vector>

#include "nic/wire/header.h"

namespace pbox::pipeline {

struct TraceEvent {
  enum class Kind : uint8_t {
    kFirst,  // the rank's first fragment of the round was here
    kLast,   // its last one was
    kFull,   // all ranks' were, and the result is made
    kSent,   // the last packet of the result is ready for the port, for the last rank
  };
  uint64_t at_ns = 0;
  uint32_t chunk = 0;  // id in the job
  uint32_t round = 0;  // as the wire counts it
  uint32_t rank = 0;   // of kFirst and kLast
  Kind kind = Kind::kFirst;
};

class RoundTrace {
 public:
  using Clock = uint64_t (*)();

  // Keeps the first `capacity` events until `until_ns` on that clock: a pipeline has none, and
  // packets of one turn are to be told apart.
  RoundTrace(size_t capacity, uint64_t until_ns, Clock clock)
      : capacity_(capacity), until_ns_(until_ns), clock_(clock) {
    events_.resize(capacity);  // touches the memory, so that the pipeline need not
    events_.clear();
  }
  // By index in the shard: rounds before these began earlier than the trace, and are left out.
  std::vector<uint32_t>& first_rounds() { return first_rounds_; }

  uint64_t now_ns() const { return clock_(); }
  uint64_t until_ns() const { return until_ns_; }
  void add(uint32_t chunk_index, const TraceEvent& event) {
    if (wire::round_distance(event.round, first_rounds_[chunk_index]) < 0) return;
    if (events_.size() == capacity_) {
      ++lost_;
    } else {
      events_.push_back(event);
    }
  }

  // Each rank's own are in order; of one round kLast of the last rank comes after kFull, but is not
  // later.
  const std::vector<TraceEvent>& events() const { return events_; }
  uint64_t lost() const { return lost_; }  // events that there was no room for: the last ones

 private:
  size_t capacity_;
  uint64_t until_ns_;
  Clock clock_;
  std::vector<uint32_t> first_rounds_;
  std::vector<TraceEvent> events_;
  uint64_t lost_ = 0;
};

}  // namespace pbox::pipeline
