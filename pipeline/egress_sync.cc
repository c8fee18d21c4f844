// Replies of relaxed shards (engine_sync.cc), one rank after the other.
#include "pipeline/egress.h"
#include "pipeline/result_form.h"
#include "pipeline/result_maker.h"
#include "pipeline/round_tracing.h"

namespace pbox::pipeline {

// Makes the packets for one rank. Replies carry the chunk as it is when they leave.
void Egress::fill_due_replies(JobShard& shard, EgressRoom& room) {
  sync::ReplyCursor& at = shard.reply_cursor;
  if (!at.ranks.empty() && !at.ranks.has(at.rank)) at.begin();
  if (!at.ranks.empty() && waits_for_copy(*at.chunk)) {
    PBOX_DCHECK(at.chunk->sync != nullptr && !at.chunk->applies_on_arrival());
    at.chunk->sync->replies_due.add(at.ranks);
    at.ranks = {};
  }
  if (!at.ranks.empty() && !at.has_begun()) give_way(shard);
  if (at.ranks.empty()) {
    FanOut next;
    if (!shard.egress.pop(next)) return;
    sync::ChunkSync& waiting = *next.chunk->sync;
    PBOX_DCHECK(waiting.queued);
    if (waits_for_copy(*next.chunk)) {  // queued again when the round finishes
      waiting.queued = false;
      return;
    }
    at = {next.chunk, waiting.replies_due, next.chunk->id % shard.worker_count()};
    shard.reply_place = next.place;
    waiting.replies_due = {};
    waiting.queued = false;
    if (at.ranks.empty()) return;
  }
  if (!at.ranks.has(at.rank)) {
    const uint32_t rank = at.ranks.next(at.rank);
    at.rank = rank != sync::RankSet::kNone ? rank : at.ranks.next(0);
    at.begin();
  }
  PBOX_DCHECK(at.rank < shard.worker_count() && at.ranks.has(at.rank));
  Session& session = shard.sessions()[at.rank];
  PBOX_DCHECK(at.chunk->rounds_finished > 0);
  const bool in_full = replies_in_full(*at.chunk, at.rank);
  if (in_full != at.in_full) at.begin();  // the forms have other fragments
  at.in_full = in_full;
  const ResultMaker maker(shard, session, *at.chunk, at.chunk->open_round() - 1, in_full,
                          context_.tag);
  const uint32_t count = maker.fragment_count();
  if (!at.chunk->applies_on_arrival()) at.follow(at.chunk->open_round() - 1, count);
  PBOX_DCHECK(at.fragment <= count);
  const bool sends = session.present && session.reachable;
  uint32_t covered = 1;
  for (; sends && at.fragment < count; at.fragment += covered) {
    if (room.is_used_up()) return;
    covered = make_reply(maker, *at.chunk, at.rank, at.next(count), 0, room.filled);
    room.take(outgoing_[room.filled].header.payload_bytes);
  }
  if (sends && shard.trace != nullptr) [[unlikely]] {
    trace_reply(shard, *at.chunk, at.rank);
  }
  at.ranks.remove(at.rank);
  at.begin();
}

// Makes a packet of what the rank lacks of the chunk, as it is now. Returns the number of fragments
// that it covers: of a table they may be several.
uint32_t Egress::make_reply(const ResultMaker& maker, Chunk& chunk, uint32_t rank,
                            uint32_t fragment, uint8_t flags, size_t index) {
  const bool by_rows =
      chunk.table != nullptr && chunk.has_own_rounds() && chunk.table->begin_reply(rank);
  if (by_rows) {
    return maker.make_rows(chunk.table->layout, chunk.table->rows_for(rank), fragment, flags,
                           rows_room_.at(index), room_.at(index), outgoing_[index]);
  }
  maker.make(fragment, flags, room_.at(index), outgoing_[index]);
  return 1;
}

// Puts the ranks that are still to be served back, if a more urgent chunk waits.
void Egress::give_way(JobShard& shard) {
  sync::ReplyCursor& at = shard.reply_cursor;
  const FanOut* next = shard.egress.top();
  if (next == nullptr || next->place.priority <= shard.reply_place.priority) return;
  PBOX_DCHECK(at.chunk != nullptr && at.chunk->sync != nullptr);
  sync::ChunkSync& waiting = *at.chunk->sync;
  waiting.replies_due.add(at.ranks);
  at.ranks = {};
  if (waiting.queued) return;
  waiting.queued = true;
  shard.egress.give_back({at.chunk, at.chunk->open_round(), shard.reply_place});
}

}  // namespace pbox::pipeline
