#include "pipeline/round_tracing.h"

#include <algorithm>

namespace pbox::pipeline {

// A trace shows whole rounds: rounds that have begun already are left out.
void set_trace(JobShard& shard, RoundTrace* trace) {
  shard.trace = trace;
  if (trace != nullptr) {
    PBOX_CHECK(trace->first_rounds().size() == shard.chunks().size());
    for (const Chunk& chunk : shard.chunks()) {
      trace->first_rounds()[shard.index_of(chunk)] =
          chunk.open_round() + (chunk.claimed_any == 0 ? 0 : 1);
    }
  }
}

bool is_any_traced(const EngineContext& context) {
  return std::any_of(context.shards.begin(), context.shards.end(),
                     [](const JobShard* shard) { return shard->trace != nullptr; });
}

// A trace ends by itself, since the client that asked for it may be gone.
void end_traces(EngineContext& context) {
  for (JobShard* shard : context.shards) {
    if (shard->trace == nullptr || context.now_ns < shard->trace->until_ns()) continue;
    shard->trace = nullptr;
  }
}

TracedPush before_push(const SessionTable& sessions, const nic::RxPacket& packet) {
  wire::Parsed parsed;
  if (wire::parse(packet.data, packet.bytes, parsed) != wire::Reject::kNone) return {};
  const SessionEntry& entry = sessions.at(parsed.header.spi);
  if (entry.session == nullptr || entry.shard->trace == nullptr) return {};
  const Chunk* chunk = entry.shard->find(parsed.header.chunk);
  if (chunk == nullptr) return {};
  PBOX_DCHECK(entry.session->rank < entry.shard->worker_count());
  return {.shard = entry.shard,
          .chunk = chunk,
          .rank = entry.session->rank,
          .claimed = chunk->claimed[entry.session->rank],
          .rounds_finished = chunk->rounds_finished,
          .at_ns = entry.shard->trace->now_ns()};
}

void after_push(const TracedPush& before) {
  if (before.shard == nullptr) return;
  PBOX_DCHECK(before.chunk != nullptr && before.rank < before.shard->worker_count());
  const Chunk& chunk = *before.chunk;
  const bool finished = chunk.rounds_finished != before.rounds_finished;
  const uint64_t claimed = finished ? chunk.full_mask : chunk.claimed[before.rank];
  if (claimed == before.claimed) return;  // the packet was not added
  PBOX_DCHECK((before.claimed & ~claimed) == 0);
  const auto add = [&](TraceEvent::Kind kind) {
    before.shard->trace->add(before.shard->index_of(chunk),
                             {.at_ns = before.at_ns,
                              .chunk = chunk.id,
                              .round = static_cast<uint32_t>(before.rounds_finished),
                              .rank = before.rank,
                              .kind = kind});
  };
  if (before.claimed == 0) add(TraceEvent::Kind::kFirst);
  if (claimed == chunk.full_mask) add(TraceEvent::Kind::kLast);
}

void trace_round(const JobShard& shard, const Chunk& chunk, uint32_t round, TraceEvent::Kind kind) {
  PBOX_DCHECK(shard.trace != nullptr);
  shard.trace->add(
      shard.index_of(chunk),
      {.at_ns = shard.trace->now_ns(), .chunk = chunk.id, .round = round, .kind = kind});
}

}  // namespace pbox::pipeline
