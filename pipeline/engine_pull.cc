// Answers to PULL: data where it may be sent, otherwise a STATUS. Resends are bounded per session.
#include <algorithm>
#include <cstring>

#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"

namespace pbox::pipeline {

void Engine::on_pull(JobShard& shard, Session& session, const wire::Parsed& parsed,
                     uint64_t now_ns) {
  counters_.add(Counter::kPullsReceived);
  if (parsed.header.payload_bytes != sizeof(wire::PullPayload)) {
    counters_.add(Counter::kRejectLength);
    return;
  }
  if (shard.sync.model != wire::SyncModel::kBsp) {
    on_sync_pull(shard, session, parsed, now_ns);
    return;
  }
  Chunk* chunk = check_round(shard, parsed.header);
  if (chunk == nullptr) return;
  PBOX_DCHECK((chunk->pulled != nullptr) == (shard.delivery == wire::Delivery::kPull));
  if (parsed.header.round + 1 == chunk->open_round() && !chunk->is_stepped) {
    wire::PullPayload pull;
    std::memcpy(&pull, parsed.payload, sizeof(pull));
    const uint64_t mask = chunk->full_mask & ~pull.held_mask;
    if (chunk->pulled != nullptr && answer_pull(shard, session, *chunk, mask)) return;
    if (request_resend(shard, session, *chunk, mask, now_ns)) return;
  }
  send_status(shard, session, *chunk, parsed.header);
}

// Delivery `pull`. The first copy of a result for each worker is no resend: only the queue's
// capacity bounds it. Returns false if nothing was queued.
bool Engine::answer_pull(JobShard& shard, const Session& session, Chunk& chunk, uint64_t mask) {
  PBOX_DCHECK(shard.delivery == wire::Delivery::kPull && session.rank < shard.worker_count());
  PBOX_DCHECK((mask & ~chunk.full_mask) == 0);
  uint32_t& pulled = chunk.pulled[session.rank];
  if (mask == 0 || pulled == chunk.open_round()) return false;
  const Resend asked{&chunk, chunk.open_round() - 1, session.rank, mask};
  if (!shard.egress.push_answer(asked, chunk.priority)) {
    counters_.add(Counter::kResendsRefused);
    return false;
  }
  pulled = chunk.open_round();
  return true;
}

// Queues fragments of the last finished round to leave again. Returns false if nothing was queued.
bool Engine::request_resend(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                            uint64_t now_ns) {
  PBOX_DCHECK((mask & ~chunk.full_mask) == 0);
  if (mask == 0) return false;
  // The first copy has not left for every worker yet.
  if (chunk.fanned_out_rounds != chunk.open_round()) return false;
  // Every rank has consumed the last result, and the open round's weights have replaced it.
  if (chunk.is_stepped) return false;
  if (!has_resend_budget(session, now_ns)) return false;
  if (!shard.egress.push_resend({&chunk, chunk.open_round() - 1, session.rank, mask})) {
    counters_.add(Counter::kResendsRefused);
    return false;
  }
  charge_resend(shard, session, mask);
  return true;
}

// The bound keeps duplicates from being turned into a flood: a session may be resent four windows
// of its credit at once, refilled at one window per millisecond.
bool Engine::has_resend_budget(Session& session, uint64_t now_ns) {
  const int64_t full = 4 * int64_t{session.credit_bytes};
  const uint64_t elapsed_ms = (now_ns - session.resend_refill_ns) / 1'000'000;
  if (elapsed_ms > 0) {
    session.resend_refill_ns = now_ns;
    const auto refill =
        static_cast<int64_t>(elapsed_ms < 4 ? elapsed_ms : 4) * int64_t{session.credit_bytes};
    session.resend_budget_bytes = std::min(full, session.resend_budget_bytes + refill);
  }
  if (session.resend_budget_bytes > 0) return true;
  counters_.add(Counter::kResendsRefused);
  return false;
}

void Engine::charge_resend(const JobShard& shard, Session& session, uint64_t mask) {
  PBOX_DCHECK(session.resend_budget_bytes > 0);
  session.resend_budget_bytes -= int64_t{__builtin_popcountll(mask)} * shard.fragment_bytes;
}

}  // namespace pbox::pipeline
