// Jobs whose consistency model is not BSP. Where pushes are applied as they come (ASP, SSP, ESSP,
// PSSP, DPSSP) rounds are the ranks' own iterations: a push steps the weights at once, fragment by
// fragment, and is the rank's next read too (FluentPS: push and pull overlap shard by shard). The
// read is answered, or waits, by the chunk's own progress alone. Model drop is the slot machine
// with rounds that close early.
//
// Replies are made from what the weights are when they leave, never from a snapshot. What a rank is
// told of its own rounds says whether its read may go on, so that no packet that is late or doubled
// can let it go.
#include <cstring>

#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/sync/rules.h"

namespace pbox::pipeline {

using wire::SyncModel;

void Engine::on_sync_push(JobShard& shard, Session& session, const wire::Parsed& parsed,
                          uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return;
  if (chunk->rounds_finished == 0) {  // initial weights: a barrier in every model
    push_into_slot(shard, session, parsed, now_ns);
    return;
  }
  if (header.type() != wire::PacketType::kPush) {
    counters_.add(Counter::kRejectType);
    return;
  }
  if (!check_fragment(shard, *chunk, header)) return;
  if (!chunk->applies_on_arrival()) {
    if (wire::round_distance(header.round, chunk->open_round()) < 0) {
      on_late_push(shard, session, *chunk, header);
    } else {
      push_into_slot(shard, session, parsed, now_ns);
    }
    return;
  }
  const auto next = static_cast<uint32_t>(chunk->sync->progress.next(session.rank));
  const int32_t ahead = wire::round_distance(header.round, next);
  // Who goes on although its read waits does not keep the protocol; the bound holds all the same.
  if (ahead > 0 || (ahead == 0 && chunk->sync->progress.is_parked(session.rank))) {
    counters_.add(Counter::kRejectRound);
    return;
  }
  const uint64_t bit = uint64_t{1} << header.fragment;
  if (ahead < 0 || (chunk->claimed[session.rank] & bit) != 0) {
    counters_.add(Counter::kDuplicate);
    session.duplicates.add(1);
    return;
  }
  apply(shard, session, *chunk, parsed);
  if (chunk->claimed[session.rank] != chunk->full_mask) return;
  complete_push(shard, session, *chunk, header);
  clock_.mark(Phase::kFinish);
}

// Claims and steps: one update of the optimizer on the fragment's part of the chunk.
void Engine::apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  chunk.claimed[session.rank] |= uint64_t{1} << header.fragment;
  const size_t offset = shard.fragment_offset_elements(chunk, header.fragment);
  const size_t elements = header.payload_bytes / wire::dtype_bytes(chunk.dtype);
  const auto type = static_cast<size_t>(chunk.dtype);
  const bool finite = kernels_.store[type](shard.gradient, parsed.payload, elements);
  if (!finite) [[unlikely]]
    note_nonfinite(session, header.chunk, header.round);
  const bool is_mean = shard.reduction == Reduction::kMean;
  const auto parameters =
      optimizer::step_parameters(shard.optimizer, chunk.lr_scale, chunk.weight_decay,
                                 is_mean ? 1.0f / static_cast<float>(shard.worker_count()) : 1.0f,
                                 ++chunk.sync->updates[header.fragment]);
  const size_t state_floats = optimizer::state_floats_per_element(shard.optimizer.kind);
  float* state = state_floats > 0 ? chunk.state + state_floats * offset : nullptr;
  optimizer::step(shard.optimizer, parameters, chunk.weights + offset, state, shard.gradient,
                  elements);
  if (chunk.dtype != wire::Dtype::kF32) {
    kernels_.narrow[type](chunk.result[0] + size_t{header.fragment} * shard.fragment_bytes,
                          chunk.weights + offset, elements);
  }
  results_changed_ = true;
  ++aggregated_;
  aggregated_bytes_ += header.payload_bytes;
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  clock_.mark(Phase::kAdd);
}

void Engine::complete_push(JobShard& shard, Session& session, Chunk& chunk,
                           const wire::Header& header) {
  const uint32_t rank = session.rank;
  sync::Progress& progress = chunk.sync->progress;
  const uint64_t round = progress.next(rank);
  chunk.claimed[rank] = 0;
  const bool advanced = progress.complete_push(rank);
  if (progress.lead() > shard.lead_rounds.get()) shard.lead_rounds.set(progress.lead());
  if (advanced) {
    session.last_arrivals.add(1);
    on_advance(shard, chunk);
  }
  if (sync::reads_cached(shard.sync)) {
    send_progress(shard, session, chunk, header);
    return;
  }
  shard.pulls.add(1);
  if (sync::blocks(shard.sync,
                   {shard.epoch, rank, round, progress.slowest(), progress.fastest()})) {
    park(shard, chunk, rank);
  } else {
    owe(shard, chunk, rank);
  }
}

// The slowest has pushed a round that it had alone not pushed.
void Engine::on_advance(JobShard& shard, Chunk& chunk) {
  sync::Progress& progress = chunk.sync->progress;
  const uint64_t advance = progress.slowest() - chunk.rounds_finished;
  counters_.add(Counter::kRoundsFinished, advance);
  shard.rounds_finished.add(advance);
  chunk.rounds_finished = progress.slowest();
  chunk.fanned_out_rounds = chunk.open_round();
  results_changed_ = true;
  for (uint32_t rank = progress.parked().next(0); rank != sync::RankSet::kNone;
       rank = progress.parked().next(rank + 1)) {
    if (!sync::releases(shard.sync, progress.next(rank) - 1, progress.slowest())) continue;
    unpark(shard, chunk, rank);
    owe(shard, chunk, rank);
  }
  if (shard.sync.model != SyncModel::kEssp) return;
  for (const Session& session : shard.sessions()) {
    if (session.present) owe(shard, chunk, session.rank);
  }
}

// A round of the slot machine has its result, which nobody has been told of yet. Who was late for
// it and has pushed a part learns it now, the others when they have pushed theirs.
void Engine::close_round(JobShard& shard, Chunk& chunk) {
  const uint64_t finished = chunk.rounds_finished + 1;
  chunk.fanned_out_rounds = static_cast<uint32_t>(finished);
  results_changed_ = true;
  const bool applies = chunk.applies_on_arrival();
  if (applies) {
    chunk.sync->progress.begin({chunk.sync->next, shard.worker_count()}, finished);
  }
  for (const Session& session : shard.sessions()) {
    const uint64_t claimed = chunk.claimed[session.rank];
    if (!applies && claimed != 0) {
      chunk.sync->pushed[session.rank] = {chunk.open_round(), claimed, claimed};
    }
    if (!session.present) {
      if (applies) chunk.sync->progress.leave(session.rank);
    } else if (claimed != 0) {
      owe(shard, chunk, session.rank);
    }
  }
}

// Model drop: a fragment of a round that closed without it.
void Engine::on_late_push(JobShard& shard, Session& session, Chunk& chunk,
                          const wire::Header& header) {
  sync::Pushed& pushed = chunk.sync->pushed[session.rank];
  const uint64_t bit = uint64_t{1} << header.fragment;
  const int32_t ahead = wire::round_distance(header.round, pushed.round);
  if (ahead < 0) {
    counters_.add(Counter::kStale);
    return;
  }
  if (ahead > 0) pushed = {header.round, 0, 0};
  if ((pushed.mask & bit) != 0) {
    counters_.add(Counter::kDuplicate);
    session.duplicates.add(1);
    return;
  }
  pushed.mask |= bit;
  results_changed_ = true;  // what packets say of the rank's own rounds
  counters_.add(Counter::kDropped);
  session.dropped.add(1);
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  if (pushed.mask == chunk.full_mask) owe(shard, chunk, session.rank);
}

void Engine::on_sync_pull(JobShard& shard, Session& session, const wire::Parsed& parsed,
                          uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return;
  if (wire::round_distance(header.round, chunk->next_round(session.rank)) > 0) {
    counters_.add(Counter::kRejectRound);
    return;
  }
  wire::PullPayload pull;
  std::memcpy(&pull, parsed.payload, sizeof(pull));
  if (answer_with_data(shard, session, *chunk, header, pull.held_mask, now_ns)) return;
  if (chunk->has_own_rounds()) {
    send_progress(shard, session, *chunk, header);
  } else {
    send_status(shard, session, *chunk, header);
  }
}

// False if there is nothing to be had now, or it is about to leave anyway.
bool Engine::answer_with_data(JobShard& shard, Session& session, Chunk& chunk,
                              const wire::Header& asked, uint64_t held_mask, uint64_t now_ns) {
  const uint32_t rank = session.rank;
  uint64_t mask = chunk.full_mask & ~held_mask;
  if (chunk.rounds_finished == 0) return false;
  if (chunk.applies_on_arrival()) {
    sync::Progress& progress = chunk.sync->progress;
    if (mask == 0 || !chunk.sync->awaits(rank, asked.round)) return false;
    if (sync::reads_cached(shard.sync)) {
      shard.pulls.add(1);
      const sync::Reader reader{shard.epoch, rank, progress.next(rank) - 1, progress.slowest(),
                                progress.fastest()};
      if (sync::blocks(shard.sync, reader)) {
        park(shard, chunk, rank);
        return false;
      }
    }
  } else {
    if (asked.round == chunk.open_round()) return false;
    // What it holds may be of an older round than the newest.
    if (asked.round + 1 != chunk.open_round()) mask = chunk.full_mask;
  }
  const bool leaves_already = chunk.sync->owed.has(rank) ||
                              (shard.departure.chunk == &chunk && shard.departure.ranks.has(rank));
  if (leaves_already) return false;
  if (!may_resend(session, now_ns)) return false;
  if (mask == chunk.full_mask) {
    owe(shard, chunk, rank);
  } else if (!shard.egress.push_resend({&chunk, asked.round, rank, mask})) {
    counters_.add(Counter::kResendsRefused);
    return false;
  }
  session.resend_budget_bytes -= int64_t{__builtin_popcountll(mask)} * shard.fragment_bytes;
  return true;
}

void Engine::leave(JobShard& shard, uint32_t rank) {
  // Packets made for it but not sent can no longer be brought up to date. As when a job is removed.
  outgoing_begin_ = outgoing_end_ = 0;
  for (Chunk& chunk : shard.chunks()) {
    chunk.sync->owed.remove(rank);
    if (!chunk.applies_on_arrival() || chunk.rounds_finished == 0) continue;
    if (chunk.sync->progress.is_parked(rank)) unpark(shard, chunk, rank);
    if (chunk.sync->progress.leave(rank)) on_advance(shard, chunk);
  }
}

namespace {

// Reads that wait, times how long: what has been added up to now.
void count_parked(JobShard& shard, uint64_t now_ns) {
  if (now_ns > shard.parked_changed_ns) {
    shard.parked_ns.add(shard.parked_count * (now_ns - shard.parked_changed_ns));
  }
  shard.parked_changed_ns = now_ns;
}

}  // namespace

void Engine::park(JobShard& shard, Chunk& chunk, uint32_t rank) {
  count_parked(shard, now_ns_);
  ++shard.parked_count;
  shard.pulls_delayed.add(1);
  chunk.sync->progress.park(rank);
}

void Engine::unpark(JobShard& shard, Chunk& chunk, uint32_t rank) {
  count_parked(shard, now_ns_);
  --shard.parked_count;
  chunk.sync->progress.unpark(rank);
}

// The chunk leaves for the rank when its turn comes. What was about to is older, and void.
void Engine::owe(JobShard& shard, Chunk& chunk, uint32_t rank) {
  chunk.sync->owed.add(rank);
  if (shard.departure.chunk == &chunk) shard.departure.ranks.remove(rank);
  if (chunk.sync->queued) return;
  chunk.sync->queued = true;
  shard.egress.push(&chunk, chunk.open_round(), chunk.priority);
}

void Engine::send_progress(const JobShard& shard, Session& session, const Chunk& chunk,
                           const wire::Header& asked) {
  const sync::Progress& progress = chunk.sync->progress;
  const uint64_t next = progress.next(session.rank);
  wire::StatusPayload status;
  status.finished_round = chunk.open_round();
  if (asked.round == static_cast<uint32_t>(next)) {
    status.received_mask = chunk.claimed[session.rank];
  } else {
    status.received_mask = chunk.full_mask;
    const bool waits = progress.is_parked(session.rank) || sync::reads_cached(shard.sync);
    if (waits && asked.round + 1 == static_cast<uint32_t>(next)) {
      const auto behind =
          progress.behind(sync::awaited_clock(shard.sync, next - 1, progress.slowest()));
      status.missing_workers = static_cast<uint16_t>(behind.count);
      status.first_missing_rank = static_cast<uint16_t>(behind.slowest_rank);
    }
  }
  answer(shard, session, asked, status);
}

}  // namespace pbox::pipeline
