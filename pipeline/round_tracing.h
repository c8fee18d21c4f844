// Writes the traces of rounds (observe/round_trace.h). Arrivals are inferred from what a packet
// changes, so that a packet takes the same way through the engine with a trace and without. The
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
  uint64_t claimed = 0;
  uint64_t rounds_finished = 0;
  uint64_t at_ns = 0;
};

// Traces the shard's rounds from now on; nullptr: no more.
void set_trace(JobShard& shard, RoundTrace* trace);
// Ends the traces whose time is over.
void end_traces(EngineContext& context);
bool is_any_traced(const EngineContext& context);

TracedPush before_push(const SessionTable& sessions, const nic::RxPacket& packet);
void after_push(const TracedPush& before);
// The shard has a trace. `kind` is kFull or kSent.
void trace_round(const JobShard& shard, const Chunk& chunk, uint32_t round, TraceEvent::Kind kind);

}  // namespace pbox::pipeline
