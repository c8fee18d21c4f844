// Writes the traces of rounds (observe/round_trace.h). Arrivals are inferred from what a packet
// changes, so that the engine handles a packet in the same way with a trace and without. The
// pipeline's core calls everything here.
#pragma once

#include <cstdint>

#include "nic/port.h"
#include "pipeline/engine_context.h"

namespace pbox::pipeline {

// A packet's chunk as it was before the engine took the packet.
struct TracedPush {
  JobShard* shard = nullptr;  // null: the packet belongs to no job that is traced
  const Chunk* chunk = nullptr;
  uint32_t rank = 0;
  uint32_t round = 0;    // the packet's round
  uint64_t claimed = 0;  // fragments that the rank has pushed of that round
  uint64_t at_ns = 0;
};

// Traces the shard's rounds from now on; nullptr ends the trace.
void set_trace(JobShard& shard, RoundTrace* trace);
// Ends the traces whose time is over.
void end_traces(EngineContext& context);
bool is_any_traced(const EngineContext& context);

// Called before and after the engine takes a packet. after_push() records the arrivals.
TracedPush before_push(const SessionTable& sessions, const nic::RxPacket& packet);
void after_push(const TracedPush& before);
// Records an event. The shard must have a trace.
void trace_event(const JobShard& shard, const Chunk& chunk, uint32_t round, TraceEvent::Kind kind,
                 uint32_t rank = 0);
// The same for a chunk whose ranks have own rounds. The event belongs to the round that the rank
// has pushed last.
void trace_read(const JobShard& shard, const Chunk& chunk, TraceEvent::Kind kind, uint32_t rank);
// Records that a reply has left for the rank. The shard must be relaxed and have a trace.
void trace_reply(const JobShard& shard, const Chunk& chunk, uint32_t rank);

}  // namespace pbox::pipeline
