// Relaxed shards: jobs in which some tensor's consistency model is not BSP. With ASP, SSP, ESSP,
// PSSP and DPSSP, pushes are applied on arrival and rounds are the ranks' own iterations. A push
// steps the weights at once, fragment by fragment, and also asks for the rank's next read
// (FluentPS, CLUSTER 2019: push and pull overlap shard by shard). The chunk's own progress decides
// whether that read is answered or parked. Model `drop` is the slot machine (job_shard.h) with
// rounds that close early. BSP in a relaxed shard is like `drop`, but waits for all present ranks.
//
// A reply carries the weights as they are when it leaves, never an earlier copy. Each packet names
// the rank's round up to which it may read. So no late or duplicated packet releases a parked read.
#include <cstring>

#include "pipeline/engine.h"
#include "pipeline/engine_checks.h"
#include "pipeline/late_ranks.h"
#include "pipeline/result_form.h"
#include "pipeline/round_result.h"
#include "pipeline/round_tracing.h"
#include "pipeline/state/state_cut.h"
#include "pipeline/sync/rules.h"
#include "pipeline/value_guard.h"

namespace pbox::pipeline {

namespace {

// Answers every parked read of the chunk that need not wait any more: waits(rank) is false.
template <typename Waits>
void release_parked(JobShard& shard, Chunk& chunk, uint64_t now_ns, const Waits& waits) {
  const sync::Progress& progress = chunk.sync->progress;
  PBOX_DCHECK(chunk.has_own_rounds());
  for (uint32_t rank = progress.parked().next(0); rank != sync::RankSet::kNone;
       rank = progress.parked().next(rank + 1)) {
    if (waits(rank)) continue;
    shard.unpark(chunk, rank, now_ns);
    shard.queue_reply(chunk, rank);
  }
}

// Parks the rank's read if the rank must wait for the data that it asks for. Returns true if so.
bool park_cached_read(JobShard& shard, Chunk& chunk, uint32_t rank, uint64_t now_ns) {
  PBOX_DCHECK(!chunk.sync->progress.is_parked(rank));
  shard.pulls.add(1);
  if (!sync::blocks(chunk.sync->spec, shard.reader(chunk, rank))) {
    if (shard.trace != nullptr) [[unlikely]] {
      trace_read(shard, chunk, TraceEvent::Kind::kReleased, rank);
    }
    return false;
  }
  shard.park(chunk, rank, now_ns);
  return true;
}

bool is_pushing_late(const Chunk& chunk, uint32_t rank, uint32_t round) {
  if (round == chunk.open_round()) return false;  // the round waits for the backup box
  return chunk.sync->pushed != nullptr && chunk.sync->is_pushing(rank, round, chunk.full_mask);
}

// Model `drop`: sends STATUS to a rank whose late push has arrived only in part.
void send_late_progress(Egress& egress, const JobShard& shard, Session& session, const Chunk& chunk,
                        const wire::Header& asked) {
  PBOX_DCHECK(is_pushing_late(chunk, session.rank, asked.round));
  wire::StatusPayload status;
  status.finished_round = chunk.open_round();
  status.received_mask = chunk.sync->pushed[session.rank].mask;
  egress.answer(shard, session, asked, status);
}

// Sends STATUS to a rank of a job whose pushes are applied on arrival.
void send_progress(Egress& egress, const JobShard& shard, Session& session, const Chunk& chunk,
                   const wire::Header& asked) {
  const sync::Progress& progress = chunk.sync->progress;
  PBOX_DCHECK(chunk.has_own_rounds() && progress.takes_part(session.rank));
  const uint64_t next = progress.next(session.rank);
  wire::StatusPayload status;
  status.finished_round = chunk.open_round();
  if (asked.round == static_cast<uint32_t>(next)) {
    status.received_mask = chunk.claimed[session.rank];
  } else {
    status.received_mask = chunk.full_mask;
    const bool may_wait = progress.is_parked(session.rank) || sync::reads_cached(chunk.sync->spec);
    if (may_wait && asked.round + 1 == static_cast<uint32_t>(next)) {
      const auto behind =
          progress.behind(sync::awaited_clock(chunk.sync->spec, next - 1, progress.slowest()));
      status.missing_workers = static_cast<uint16_t>(behind.count);
      status.first_missing_rank = static_cast<uint16_t>(behind.slowest_rank);
    }
  }
  egress.answer(shard, session, asked, status);
}

}  // namespace

bool Engine::on_sync_push(JobShard& shard, Session& session, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return true;
  PBOX_DCHECK(chunk->sync != nullptr && shard.mode == Mode::kOptimize);
  if (chunk->rounds_finished == 0) return false;  // initial weights: a barrier in every model
  if (waits_for_copy(*chunk)) {
    context_.counters.add(Counter::kRejectRound);
    return true;
  }
  if (header.type() != wire::PacketType::kPush) {
    context_.counters.add(Counter::kRejectType);
    return true;
  }
  // A push of initial weights, which are sent in full. All ranks have pushed them already.
  if (gives_deltas(*chunk) && header.round == 0 && asks_in_full(header)) [[unlikely]] {
    count_duplicate(context_, session);
    return true;
  }
  wire::RowsView rows;
  const bool is_of_table = chunk->table != nullptr;
  if (is_of_table ? !tables_.read(*chunk, parsed, rows) : !check_fragment(*chunk, header)) {
    return true;
  }
  if (chunk->applies_on_arrival()) {
    on_own_push(shard, session, *chunk, parsed, is_of_table ? &rows : nullptr);
    return true;
  }
  if (wire::round_distance(header.round, chunk->open_round()) >= 0) return false;
  on_late_push(shard, session, *chunk, parsed, is_of_table ? &rows : nullptr);
  return true;
}

// Takes fragments of the rank's own round, and applies them.
void Engine::on_own_push(JobShard& shard, Session& session, Chunk& chunk,
                         const wire::Parsed& parsed, const wire::RowsView* rows) {
  const wire::Header& header = parsed.header;
  const sync::Progress& progress = chunk.sync->progress;
  PBOX_DCHECK(chunk.has_own_rounds() && progress.takes_part(session.rank));
  const int32_t ahead =
      wire::round_distance(header.round, static_cast<uint32_t>(progress.next(session.rank)));
  // A rank that pushes while its own read is parked violates the protocol: reject the packet, so
  // that the bound on staleness holds all the same.
  if (ahead > 0 || (ahead == 0 && progress.is_parked(session.rank))) {
    context_.counters.add(Counter::kRejectRound);
    return;
  }
  const uint64_t fragments = rows != nullptr ? rows->fragments : uint64_t{1} << header.fragment;
  if (ahead < 0 || (chunk.claimed[session.rank] & fragments) != 0) {
    count_duplicate(context_, session);
    return;
  }
  chunk.claimed[session.rank] |= fragments;
  if (rows != nullptr) {
    tables_.apply(shard, session, chunk, parsed, *rows);
  } else {
    apply(shard, session, chunk, parsed);
  }
  egress_.note_results_changed();
  ++aggregated_;
  aggregated_bytes_ += header.payload_bytes;
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  clock_.mark(Phase::kAdd);
  if (chunk.claimed[session.rank] != chunk.full_mask) return;
  complete_push(shard, session, chunk, header);
  clock_.mark(Phase::kFinish);
}

// Runs one step of the optimizer on the fragment's part of the chunk.
void Engine::apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed) {
  const wire::Header& header = parsed.header;
  const size_t offset = shard.fragment_offset_elements(chunk, header.fragment);
  const size_t elements = header.payload_bytes / wire::dtype_bytes(chunk.dtype);
  if (GradientSquares::measures(header.round)) {
    measure_gradient(kernels_, shard, session, chunk, parsed);
  }
  const auto take = gradient_kernel(kernels_, shard.guard, chunk.dtype, true);
  if (!take(shard.gradient, parsed.payload, elements, shard.value_limit)) [[unlikely]]
    note_unsound(shard, session, chunk, header.round, context_.now_ns);
  if (chunk.sync->spec.by_gradient) {
    PBOX_DCHECK(chunk.sync->sizes != nullptr && session.rank < shard.worker_count());
    sync::PushSize& size = chunk.sync->sizes[session.rank];
    size.gradient_squares += static_cast<float>(kernels_.sum_squares(shard.gradient, elements));
    size.weight_squares +=
        static_cast<float>(kernels_.sum_squares(chunk.weights + offset, elements));
  }
  ++chunk.sync->updates[header.fragment];
  step_on_arrival(shard, chunk, header.fragment, offset, elements);
}

void Engine::complete_push(JobShard& shard, Session& session, Chunk& chunk,
                           const wire::Header& header) {
  const uint32_t rank = session.rank;
  sync::Progress& progress = chunk.sync->progress;
  const uint64_t round = progress.next(rank);
  PBOX_DCHECK(chunk.claimed[rank] == chunk.full_mask);
  PBOX_DCHECK(header.round == static_cast<uint32_t>(round));
  chunk.claimed[rank] = 0;
  if (chunk.table != nullptr) chunk.table->note_read(rank);
  const bool is_open = round == progress.slowest();
  const bool advanced = progress.complete_push(rank);
  if (progress.lead() > shard.lead_rounds.get()) shard.lead_rounds.set(progress.lead());
  if (advanced) {
    note_last(shard, session, chunk, context_.now_ns);
    on_advance(shard, chunk);
  } else if (is_open) {
    shard.stragglers.arrived(shard.index_of(chunk), context_.now_ns);
  }
  if (sync::reads_cached(chunk.sync->spec)) {
    send_progress(egress_, shard, session, chunk, header);
    return;
  }
  shard.pulls.add(1);
  PBOX_DCHECK(round <= progress.fastest() && !progress.is_parked(rank));
  shard.lead_sum.add(progress.slowest() <= round ? round - progress.slowest() : 0);
  if (chunk.sync->spec.by_gradient) chunk.sync->significance.complete(chunk.sync->sizes[rank]);
  if (sync::blocks(chunk.sync->spec, shard.reader(chunk, rank))) {
    shard.park(chunk, rank, context_.now_ns);
  } else {
    shard.queue_reply(chunk, rank);
  }
}

// Called when every rank that takes part has pushed the open round: advances the minimum clock.
void Engine::on_advance(JobShard& shard, Chunk& chunk) {
  const sync::Progress& progress = chunk.sync->progress;
  PBOX_DCHECK(progress.slowest() >= chunk.rounds_finished);
  const uint64_t advance = progress.slowest() - chunk.rounds_finished;
  if (shard.cut != nullptr) [[unlikely]]
    shard.cut->copy_before_round(shard, chunk);
  context_.counters.add(Counter::kRoundsFinished, advance);
  shard.rounds_finished.add(advance);
  chunk.rounds_finished = progress.slowest();
  if (shard.trace != nullptr) [[unlikely]] {
    trace_event(shard, chunk, chunk.open_round() - 1, TraceEvent::Kind::kFull);
  }
  chunk.fanned_out_rounds = chunk.open_round();
  note_opened(shard, chunk, context_.now_ns);
  egress_.note_results_changed();
  release_parked(shard, chunk, context_.now_ns, [&](uint32_t rank) {
    return !sync::releases(chunk.sync->spec, progress.next(rank) - 1, progress.slowest());
  });
  if (!sync::sends_unasked(chunk.sync->spec)) return;
  for (const Session& session : shard.sessions()) {
    if (session.present) shard.queue_reply(chunk, session.rank);
  }
}

// Changes the chunk's consistency rule. Reads that were answered stay answered. A parked read is
// judged as if it were asked for now. Returns the number of elements that it has worked on.
size_t Engine::change_rule(JobShard& shard, Chunk& chunk, const wire::SyncSpec& rule) {
  PBOX_DCHECK(chunk.sync != nullptr && sync::may_follow(chunk.sync->spec, rule));
  if (chunk.sync->spec == rule) return 0;
  chunk.sync->spec = rule;
  if (!chunk.applies_on_arrival()) return finish_if_complete(shard, chunk);
  if (chunk.rounds_finished == 0) return 0;
  egress_.note_results_changed();  // packets already made name too old a round for released ranks
  release_parked(shard, chunk, context_.now_ns,
                 [&](uint32_t rank) { return sync::blocks(rule, shard.reader(chunk, rank)); });
  return 0;
}

// Closes a round that all ranks share, once its result may leave. A rank that has pushed any part
// of the round is sent the result now. Where late pushes count (SyncSpec::counts_late), a rank that
// has pushed only a part is sent it once the rest has arrived. A rank that has pushed nothing is
// sent it once its push is complete.
void Engine::close_round(JobShard& shard, Chunk& chunk) {
  PBOX_DCHECK(!chunk.has_own_rounds());
  const uint64_t finished = chunk.rounds_finished + 1;
  chunk.fanned_out_rounds = static_cast<uint32_t>(finished);
  egress_.note_results_changed();
  const bool applies = chunk.applies_on_arrival();
  if (applies) {
    chunk.sync->progress.begin({chunk.sync->next, shard.worker_count()}, finished);
  }
  PBOX_DCHECK(applies == (chunk.sync->pushed == nullptr));
  const bool counts_late = chunk.sync->spec.counts_late;
  for (Session& session : shard.sessions()) {
    const uint64_t claimed = chunk.claimed[session.rank];
    if (session.present && claimed != chunk.full_mask) session.missed.add(1);
    if (!session.present) {
      if (applies) chunk.sync->progress.leave(session.rank);
    } else if (claimed != 0 && (!counts_late || claimed == chunk.full_mask)) {
      shard.queue_reply(chunk, session.rank);
    }
  }
  PBOX_DCHECK(!waits_for_copy(chunk));
  if (!chunk.sync->replies_due.empty() && !chunk.sync->queued) shard.queue_replies(chunk);
}

// Model `drop`: takes fragments of a round that closed without them.
void Engine::on_late_push(JobShard& shard, Session& session, Chunk& chunk,
                          const wire::Parsed& parsed, const wire::RowsView* rows) {
  const wire::Header& header = parsed.header;
  const uint64_t fragments = rows != nullptr ? rows->fragments : uint64_t{1} << header.fragment;
  PBOX_DCHECK(chunk.sync->pushed != nullptr && session.rank < shard.worker_count());
  sync::Pushed& pushed = chunk.sync->pushed[session.rank];
  PBOX_DCHECK((pushed.counted & ~pushed.mask) == 0 && (pushed.mask & ~chunk.full_mask) == 0);
  const int32_t ahead = wire::round_distance(header.round, pushed.round);
  if (ahead < 0) {
    context_.counters.add(Counter::kStale);
    return;
  }
  if (ahead > 0) pushed = {header.round, 0, 0};
  if ((pushed.mask & fragments) != 0) {
    count_duplicate(context_, session);
    return;
  }
  pushed.mask |= fragments;
  egress_.note_results_changed();  // results name the rank's own newest round
  if (chunk.sync->spec.counts_late) {
    add_late(shard, session, chunk, parsed, rows);
    for (uint64_t left = fragments; left != 0; left &= left - 1) {
      ++chunk.sync->late[static_cast<size_t>(__builtin_ctzll(left))];
    }
  } else {
    context_.counters.add(Counter::kDropped);
    session.dropped.add(1);
  }
  session.bytes_received.add(header.payload_bytes);
  session.fragments_received.add(1);
  if (pushed.mask != chunk.full_mask) return;
  if (shard.grace.is_reserved() && header.round + 1 == chunk.open_round()) {
    shard.grace.note_late_arrival(shard.index_of(chunk), context_.now_ns);
  }
  shard.queue_reply(chunk, session.rank);
}

void Engine::on_sync_pull(JobShard& shard, Session& session, const wire::Parsed& parsed,
                          uint64_t now_ns) {
  const wire::Header& header = parsed.header;
  Chunk* chunk = find_chunk(shard, header);
  if (chunk == nullptr) return;
  if (wire::round_distance(header.round, chunk->next_round(session.rank)) > 0) {
    context_.counters.add(Counter::kRejectRound);
    return;
  }
  wire::PullPayload pull;
  std::memcpy(&pull, parsed.payload, sizeof(pull));
  if (answer_with_data(shard, session, *chunk, header, pull.held_mask, now_ns)) return;
  if (chunk->has_own_rounds()) {
    send_progress(egress_, shard, session, *chunk, header);
  } else if (is_pushing_late(*chunk, session.rank, header.round)) {
    send_late_progress(egress_, shard, session, *chunk, header);
  } else {
    egress_.send_status(shard, session, *chunk, header);
  }
}

// Queues the data that a PULL asks for. Returns false, and queues nothing, if the rank lacks no
// data, may not have it yet, or is about to be sent it anyway, or if the resend is refused.
bool Engine::answer_with_data(JobShard& shard, Session& session, Chunk& chunk,
                              const wire::Header& asked, uint64_t held_mask, uint64_t now_ns) {
  const uint32_t rank = session.rank;
  if (chunk.rounds_finished == 0 || waits_for_copy(chunk)) return false;
  AskedResult wanted{.mask = chunk.full_mask & ~held_mask};
  if (chunk.applies_on_arrival()) {
    if (wanted.mask == 0 || !chunk.sync->awaits(rank, asked.round)) return false;
    if (sync::reads_cached(chunk.sync->spec) &&
        park_cached_read(shard, chunk, rank, context_.now_ns))
      return false;
  } else {
    if (asked.round == chunk.open_round()) return false;
    // A bsp rank that asks for an older result is a new process. The round that was open when it
    // joined has finished since; STATUS says so.
    const bool is_newest = asked.round + 1 == chunk.open_round();
    if (chunk.sync->spec.model == wire::SyncModel::kBsp && !is_newest) return false;
    // A rank that has some of the result, or asks for weights in full, sends no more of its push:
    // the answer to an earlier PULL may have overtaken the push.
    const bool wants_weights = gives_deltas(chunk) && asks_in_full(asked);
    const bool sends_no_more = held_mask != 0 || wants_weights;
    if (is_pushing_late(chunk, rank, asked.round) && !sends_no_more) return false;
    wanted = asked_of_reply(shard, chunk, rank, asked, held_mask);
    if (wants_weights) egress_.note_results_changed();  // makes deltas that have not left again
    if (wanted.mask == 0) return false;
  }
  const bool leaves_already =
      chunk.sync->replies_due.has(rank) ||
      (shard.reply_cursor.chunk == &chunk && shard.reply_cursor.ranks.has(rank));
  if (leaves_already) return false;
  const bool is_whole = wanted.mask == result_mask(shard, chunk, rank, wanted.in_full);
  const Answer answer{&chunk, asked.round, rank, wanted.mask, wanted.in_full};
  if (!session.has_resend_budget(now_ns) ||
      (!is_whole && !shard.egress.push_resend(answer, chunk.priority))) {
    context_.counters.add(Counter::kResendsRefused);
    return false;
  }
  if (is_whole) shard.queue_reply(chunk, rank);
  session.charge_resend(wanted.mask, shard.fragment_bytes);
  return true;
}

// Called when the rank no longer takes part: drops its parked read and the replies due to it, and
// no longer waits for its pushes.
void Engine::drop_rank(JobShard& shard, Chunk& chunk, uint32_t rank) {
  PBOX_DCHECK(rank < shard.worker_count() && !shard.sessions()[rank].present);
  chunk.sync->replies_due.remove(rank);
  chunk.sync->forget_cut_short(rank);
  if (!chunk.applies_on_arrival() || chunk.rounds_finished == 0) return;
  if (chunk.sync->progress.is_parked(rank)) shard.unpark(chunk, rank, context_.now_ns);
  if (!chunk.sync->progress.leave(rank)) return;
  shard.stragglers.ended(shard.index_of(chunk));
  on_advance(shard, chunk);
}

}  // namespace pbox::pipeline
