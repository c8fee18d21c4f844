// Answers to PULL: data where it may be sent, otherwise a STATUS. Resends are bounded per session.
#include <algorithm>
#include <cstring>

#include "nic/wire/path_probe.h"
#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/result_form.h"

namespace pbox::pipeline {

void Engine::on_pull(JobShard& shard, Session& session, const nic::RxPacket& packet,
                     const wire::Parsed& parsed, uint64_t now_ns) {
  context_.counters.add(Counter::kPullsReceived);
  if (wire::is_path_probe(parsed.header) && parsed.header.payload_bytes <= shard.fragment_bytes) {
    if (find_chunk(shard, parsed.header) == nullptr) return;
    egress_.answer_path_probe(shard, session, parsed.header, packet);
    return;
  }
  if (parsed.header.payload_bytes != sizeof(wire::PullPayload) &&
      parsed.header.payload_bytes != sizeof(wire::ProvingPullPayload)) {
    context_.counters.add(Counter::kRejectLength);
    return;
  }
  wire::PullPayload pull;
  std::memcpy(&pull, parsed.payload, sizeof(pull));
  flight_.note_mask(pull.held_mask);
  if (!session.is_at(packet.from) && !check_address(shard, session, packet, parsed)) [[unlikely]] {
    return;
  }
  if (shard.is_relaxed()) {
    on_sync_pull(shard, session, parsed, now_ns);
    return;
  }
  Chunk* chunk = check_round(shard, parsed.header);
  if (chunk == nullptr) return;
  PBOX_DCHECK((chunk->pulled != nullptr) == (shard.delivery == wire::Delivery::kPull));
  if (parsed.header.round + 1 == chunk->open_round() && !is_replacing(*chunk)) {
    const AskedResult asked = asked_by(shard, session, *chunk, parsed.header, pull.held_mask);
    if (chunk->pulled != nullptr && answer_pull(shard, session, *chunk, asked)) return;
    if (request_resend(shard, session, *chunk, asked, now_ns)) return;
  }
  egress_.send_status(shard, session, *chunk, parsed.header);
}

// An address is proved by a PULL that echoes the challenge sent there. Nothing longer than the PULL
// goes to an address that is not proved, so that the box cannot be made to flood a stranger.
bool Engine::check_address(JobShard& shard, Session& session, const nic::RxPacket& packet,
                           const wire::Parsed& parsed) {
  PBOX_DCHECK(session.present && !session.is_at(packet.from));
  if (find_chunk(shard, parsed.header) == nullptr) return false;
  if (!session.known_host) return session.reachable;  // then the newest packet's address counts
  wire::ProvingPullPayload proof;
  if (parsed.header.payload_bytes == sizeof(proof)) {
    std::memcpy(&proof, parsed.payload, sizeof(proof));
    if (session.take_proof(packet.from, proof.challenge.number)) {
      context_.counters.add(Counter::kAddressesProved);
      session.move_to(packet.from, packet.to);
      PBOX_DCHECK(session.is_settled && session.is_at(packet.from));
      return true;
    }
  }
  if (session.challenge == 0 || session.challenged != packet.from) {
    session.challenge = std::max<uint64_t>(draw_(), 1);
    session.challenged = packet.from;
  }
  egress_.send_challenge(shard, session, parsed.header, packet);
  return false;
}

// Delivery `pull`: queues the first copy of a result for a worker. It is no resend, so only the
// queue's capacity bounds it. Returns false if nothing was queued.
bool Engine::answer_pull(JobShard& shard, const Session& session, Chunk& chunk,
                         const AskedResult& asked) {
  PBOX_DCHECK(shard.delivery == wire::Delivery::kPull && session.rank < shard.worker_count());
  uint32_t& pulled = chunk.pulled[session.rank];
  if (asked.mask == 0 || pulled == chunk.open_round()) return false;
  const Answer answer{&chunk, chunk.open_round() - 1, session.rank, asked.mask, asked.in_full};
  if (!shard.egress.push_answer(answer, chunk.priority)) {
    context_.counters.add(Counter::kResendsRefused);
    return false;
  }
  pulled = chunk.open_round();
  return true;
}

// Queues fragments of the last finished round to leave again. Returns false if nothing was queued.
bool Engine::request_resend(JobShard& shard, Session& session, Chunk& chunk,
                            const AskedResult& asked, uint64_t now_ns) {
  PBOX_DCHECK(asked.in_full || (asked.mask & ~chunk.full_mask) == 0);
  if (asked.mask == 0) return false;
  if (!session.reachable) return false;
  // The first copy has not left for every worker yet.
  if (chunk.fanned_out_rounds != chunk.open_round()) return false;
  // Every rank has consumed the last result, and the open round's result is overwriting it.
  if (is_replacing(chunk)) return false;
  if (!session.has_resend_budget(now_ns) ||
      !shard.egress.push_resend(
          {&chunk, chunk.open_round() - 1, session.rank, asked.mask, asked.in_full},
          chunk.priority)) {
    context_.counters.add(Counter::kResendsRefused);
    return false;
  }
  const uint64_t zeros = asked.mask & named_zeros(chunk, session, chunk.open_round() - 1);
  session.charge_resend((asked.mask & ~zeros) | (zeros & -zeros), shard.fragment_bytes);
  return true;
}

}  // namespace pbox::pipeline
