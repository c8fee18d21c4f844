// A trace of a job's rounds, over all its pipelines on this box. Plain values, made on the control
// thread on request.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/observe/round_trace.h"

namespace pbox::control {

struct TracedChunk {
  uint32_t part = 0;
  uint32_t chunk = 0;  // number within the part
  uint32_t pipeline = 0;
  std::string tensor;
  int32_t priority = 0;          // current priority
  bool has_own_rounds = false;   // each rank has rounds of its own
  bool is_sent_unasked = false;  // each rank is sent the data whenever the slowest has pushed
};

struct TraceView {
  struct Event {
    pipeline::TraceEvent event;
    uint32_t chunk = 0;  // index into `chunks`
  };
  std::string job;
  uint32_t world_size = 0;
  uint64_t begun_ns = 0;  // monotonic_ns()
  uint64_t ended_ns = 0;
  uint64_t lost_events = 0;         // newest events, dropped because the buffer was full
  std::vector<TracedChunk> chunks;  // only chunks that have events
  std::vector<Event> events;
};

}  // namespace pbox::control
