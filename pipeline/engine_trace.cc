// Traces of rounds. Arrivals are inferred from what a packet changes, so that a packet takes the
// same way through the engine with a trace and without.
#include <algorithm>

#include "pipeline/engine.h"

namespace pbox::pipeline {

// A trace shows whole rounds: rounds that have begun already are left out.
void Engine::set_trace(JobShard& shard, RoundTrace* trace) {
  shard.trace = trace;
  if (trace != nullptr) {
    PBOX_CHECK(trace->first_rounds().size() == shard.chunks().size());
    for (const Chunk& chunk : shard.chunks()) {
      trace->first_rounds()[shard.index_of(chunk)] =
          chunk.open_round() + (chunk.claimed_any == 0 ? 0 : 1);
    }
  }
  note_tracing();
}

void Engine::note_tracing() {
  tracing_ = std::any_of(shards_.begin(), shards_.end(),
                         [](const JobShard* shard) { return shard->trace != nullptr; });
}

// A trace ends by itself, since the client that asked for it may be gone.
void Engine::end_traces(uint64_t now_ns) {
  for (JobShard* shard : shards_) {
    if (shard->trace != nullptr && now_ns >= shard->trace->until_ns()) shard->trace = nullptr;
  }
  note_tracing();
}

Engine::TracedPush Engine::before_push(const nic::RxPacket& packet) {
  wire::Parsed parsed;
  if (wire::parse(packet.data, packet.bytes, parsed) != wire::Reject::kNone) return {};
  const SessionEntry& entry = sessions_[wire::spi_index(parsed.header.spi)];
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

void Engine::after_push(const TracedPush& before) {
  if (before.shard == nullptr) return;
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

void Engine::trace_round(const JobShard& shard, const Chunk& chunk, uint32_t round,
                         TraceEvent::Kind kind) {
  PBOX_DCHECK(shard.trace != nullptr);
  shard.trace->add(
      shard.index_of(chunk),
      {.at_ns = shard.trace->now_ns(), .chunk = chunk.id, .round = round, .kind = kind});
}

}  // namespace pbox::pipeline
