#include "pipeline/round_tracing.h"

#include <algorithm>

#include "pipeline/sync/rules.h"

namespace pbox::pipeline {
namespace {

// If ranks have own rounds, a trace takes events of up to this many rounds before the chunk's open
// round: in practice, of all rounds.
constexpr uint32_t kRoundsBehindMax = uint32_t{1} << 30;

// Returns the fragments of this round that the chunk has received from the rank.
uint64_t claimed_of(const Chunk& chunk, uint32_t rank, uint32_t round) {
  PBOX_DCHECK(chunk.sync == nullptr || chunk.applies_on_arrival() || chunk.sync->pushed != nullptr);
  if (chunk.has_own_rounds() && !chunk.sync->progress.takes_part(rank)) return 0;
  const int32_t ahead = wire::round_distance(round, chunk.next_round(rank));
  if (ahead == 0) return chunk.claimed[rank];
  if (ahead > 0) return 0;
  if (chunk.sync == nullptr || chunk.sync->pushed == nullptr) return chunk.full_mask;
  // A round that has closed, perhaps before the rank had pushed it.
  const sync::Pushed& pushed = chunk.sync->pushed[rank];
  if (pushed.round == round) return pushed.mask;
  return wire::round_distance(round, pushed.round) > 0 ? 0 : chunk.full_mask;
}

void record(const JobShard& shard, const Chunk& chunk, uint64_t at_ns, uint32_t round,
            TraceEvent::Kind kind, uint32_t rank) {
  PBOX_DCHECK(shard.trace != nullptr && rank < shard.worker_count());
  shard.trace->add(shard.index_of(chunk),
                   {.at_ns = at_ns, .chunk = chunk.id, .round = round, .rank = rank, .kind = kind});
}

}  // namespace

// Where ranks share rounds, a trace leaves out rounds that have begun, to show only whole ones.
void set_trace(JobShard& shard, RoundTrace* trace) {
  shard.trace = trace;
  if (trace != nullptr) {
    PBOX_CHECK(trace->first_rounds().size() == shard.chunks().size());
    for (const Chunk& chunk : shard.chunks()) {
      uint32_t& first = trace->first_rounds()[shard.index_of(chunk)];
      if (chunk.has_own_rounds()) {
        first = chunk.open_round() - kRoundsBehindMax;
      } else {
        first = chunk.open_round() + (chunk.claimed_any == 0 ? 0 : 1);
      }
    }
  }
}

bool is_any_traced(const EngineContext& context) {
  return std::any_of(context.shards.begin(), context.shards.end(),
                     [](const JobShard* shard) { return shard->trace != nullptr; });
}

// A trace ends by itself, because the client that asked for it may have disconnected.
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
          .round = parsed.header.round,
          .claimed = claimed_of(*chunk, entry.session->rank, parsed.header.round),
          .at_ns = entry.shard->trace->now_ns()};
}

void after_push(const TracedPush& before) {
  if (before.shard == nullptr) return;
  PBOX_DCHECK(before.chunk != nullptr && before.rank < before.shard->worker_count());
  const Chunk& chunk = *before.chunk;
  const uint64_t claimed = claimed_of(chunk, before.rank, before.round);
  if (claimed == before.claimed) return;  // the packet was not added
  PBOX_DCHECK((before.claimed & ~claimed) == 0);
  const auto add = [&](TraceEvent::Kind kind) {
    record(*before.shard, chunk, before.at_ns, before.round, kind, before.rank);
  };
  if (before.claimed == 0) add(TraceEvent::Kind::kFirst);
  if (claimed == chunk.full_mask) add(TraceEvent::Kind::kLast);
}

void trace_event(const JobShard& shard, const Chunk& chunk, uint32_t round, TraceEvent::Kind kind,
                 uint32_t rank) {
  PBOX_DCHECK(shard.trace != nullptr);
  record(shard, chunk, shard.trace->now_ns(), round, kind, rank);
}

void trace_read(const JobShard& shard, const Chunk& chunk, TraceEvent::Kind kind, uint32_t rank) {
  PBOX_DCHECK(chunk.has_own_rounds() && chunk.sync->progress.takes_part(rank));
  trace_event(shard, chunk, chunk.next_round(rank) - 1, kind, rank);
}

void trace_reply(const JobShard& shard, const Chunk& chunk, uint32_t rank) {
  PBOX_DCHECK(chunk.sync != nullptr && chunk.rounds_finished > 0);
  if (chunk.has_own_rounds() && !sync::sends_unasked(chunk.sync->spec)) {
    trace_read(shard, chunk, TraceEvent::Kind::kReplied, rank);
  } else {
    trace_event(shard, chunk, chunk.open_round() - 1, TraceEvent::Kind::kReplied, rank);
  }
}

}  // namespace pbox::pipeline
