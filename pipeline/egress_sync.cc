// Replies of relaxed shards (engine_sync.cc), one rank after the other.
#include "pipeline/egress.h"
#include "pipeline/result_form.h"
#include "pipeline/result_maker.h"
#include "pipeline/round_tracing.h"

namespace pbox::pipeline {

// Makes the packets for one rank. Replies carry the chunk as it is when they leave.
void Egress::fill_due_replies(JobShard& shard, EgressRoom& room) {
  sync::ReplyCursor& at = shard.reply_cursor;
  sync::ReplyProgress& reply = at.reply;
  if (!at.ranks.empty() && !at.ranks.has(reply.rank)) reply.begin();
  if (!at.ranks.empty() && waits_for_copy(*at.chunk)) {
    PBOX_DCHECK(at.chunk->sync != nullptr && !at.chunk->applies_on_arrival());
    at.chunk->sync->replies_due.add(at.ranks);
    if (reply.has_begun()) at.chunk->sync->cut_short = reply;
    at.ranks = {};
  }
  if (!at.ranks.empty() && !reply.has_begun()) give_way(shard);
  if (at.ranks.empty() && !begin_replies(shard)) return;
  if (!at.ranks.has(reply.rank)) {
    const uint32_t rank = at.ranks.next(reply.rank);
    reply.rank = rank != sync::RankSet::kNone ? rank : at.ranks.next(0);
    reply.begin();
  }
  PBOX_DCHECK(reply.rank < shard.worker_count() && at.ranks.has(reply.rank));
  Session& session = shard.sessions()[reply.rank];
  PBOX_DCHECK(at.chunk->rounds_finished > 0);
  const bool in_full = replies_in_full(*at.chunk, reply.rank);
  if (in_full != reply.in_full) reply.begin();  // the two forms have different fragments
  reply.in_full = in_full;
  const ResultMaker maker(shard, session, *at.chunk, at.chunk->open_round() - 1, in_full,
                          context_.tag);
  const uint32_t count = maker.fragment_count();
  if (!at.chunk->applies_on_arrival()) reply.follow(at.chunk->open_round() - 1);
  const bool sends = session.present && session.reachable;
  while (sends && !reply.has_left(count)) {
    if (room.is_used_up()) return;
    const uint32_t next = reply.next(count);
    const uint32_t covered = make_reply(maker, *at.chunk, reply.rank, next, 0, room.filled);
    reply.note_left(next, covered, count);
    room.take(outgoing_[room.filled].header.payload_bytes);
  }
  if (sends && shard.trace != nullptr) [[unlikely]] {
    trace_reply(shard, *at.chunk, reply.rank);
  }
  at.ranks.remove(reply.rank);
  reply.begin();
}

// Begins the replies of the next chunk in the queue. Returns false if none may leave.
bool Egress::begin_replies(JobShard& shard) {
  sync::ReplyCursor& at = shard.reply_cursor;
  FanOut next;
  if (!shard.egress.pop(next)) return false;
  sync::ChunkSync& waiting = *next.chunk->sync;
  PBOX_DCHECK(at.ranks.empty() && waiting.queued);
  waiting.queued = false;
  if (waits_for_copy(*next.chunk)) return false;  // queued again when the round finishes
  at = {next.chunk, waiting.replies_due, {.rank = next.chunk->id % shard.worker_count()}};
  shard.reply_place = next.place;
  if (waiting.cut_short && at.ranks.has(waiting.cut_short->rank)) at.reply = *waiting.cut_short;
  waiting.replies_due = {};
  waiting.cut_short.reset();
  return !at.ranks.empty();
}

// Makes packets again that a full port has refused, because their weights may have changed since,
// and the round that they name must be true. Packets with weights in full stay so, because their
// number may be beyond a delta's fragments. Deltas that the rank cannot use are replaced by them.
void Egress::refresh_unsent() {
  results_changed_ = false;
  JobShard* shard = nullptr;  // these three are for packets that belong to a newer round now
  Chunk* chunk = nullptr;
  sync::ReplyProgress reply;
  for (size_t index = outgoing_begin_; index < outgoing_end_; ++index) {
    nic::TxPacket& packet = outgoing_[index];
    const SessionEntry& entry = context_.sessions.at(packet.header.spi);
    const bool is_result = packet.header.type() == wire::PacketType::kResult;
    if (!is_result || entry.shard == nullptr || !entry.shard->is_relaxed()) continue;
    if ((entry.spi | wire::kSpiToWorker) != packet.header.spi) continue;  // a former session's
    PBOX_DCHECK(entry.shard->find(packet.header.chunk) != nullptr);
    Chunk& changed = *entry.shard->find(packet.header.chunk);
    if (waits_for_copy(changed)) continue;  // the packet still has the last result
    const uint32_t rank = entry.session->rank;
    const uint32_t round = changed.open_round() - 1;
    const bool is_of_round = packet.header.round == round;
    const uint64_t fragment = uint64_t{1} << packet.header.fragment;
    const bool in_full = remake(*entry.shard, *entry.session, changed, index);
    if (is_of_round || changed.applies_on_arrival()) continue;
    if (chunk != &changed || reply.rank != rank) {
      if (chunk != nullptr) owe_rest(*shard, *chunk, reply);
      shard = entry.shard;
      chunk = &changed;
      reply = {.rank = rank, .round = round, .in_full = replies_in_full(changed, rank)};
    }
    if (in_full == reply.in_full) reply.sent |= fragment;
  }
  if (chunk != nullptr) owe_rest(*shard, *chunk, reply);
}

// Makes an unsent packet again, of the chunk as it is now. Returns whether it has weights in full.
bool Egress::remake(const JobShard& shard, Session& session, Chunk& chunk, size_t index) {
  nic::TxPacket& packet = outgoing_[index];
  const bool was_full = gives_deltas(chunk) && asks_in_full(packet.header);
  const bool in_full = was_full || replies_in_full(chunk, session.rank);
  const ResultMaker maker(shard, session, chunk, chunk.open_round() - 1, in_full, context_.tag);
  const uint32_t fragment = packet.header.fragment;
  PBOX_DCHECK(fragment < maker.fragment_count());
  const uint8_t flags = packet.header.flags & wire::flag::kRetransmission;
  if ((packet.header.flags & wire::flag::kRows) == 0) {
    // The packet may belong to a newer reply now, and be its first.
    const bool notes_readers = chunk.table != nullptr && chunk.has_own_rounds();
    if (notes_readers) static_cast<void>(chunk.table->begin_reply(session.rank));
    maker.make(fragment, flags, room_.at(index), packet);
  } else {
    // If fewer fragments fit now, the rank asks for the others.
    make_reply(maker, chunk, session.rank, fragment, flags, index);
  }
  return in_full;
}

// Queues the rest of a newer round for a rank that is sent some packets of that round already,
// because they were made again. The rank cannot use the packets of the older round any more.
void Egress::owe_rest(JobShard& shard, Chunk& chunk, const sync::ReplyProgress& reply) {
  const sync::ReplyCursor& at = shard.reply_cursor;
  PBOX_DCHECK(!chunk.applies_on_arrival() && !waits_for_copy(chunk));
  if (reply.sent == result_mask(shard, chunk, reply.rank, reply.in_full)) return;
  if (at.chunk == &chunk && at.ranks.has(reply.rank)) return;  // the reply is already leaving
  chunk.sync->cut_short = reply;
  shard.queue_reply(chunk, reply.rank);
}

// Makes a packet of the chunk as it is now, from `fragment` on. For a table it has only the rows
// that the rank lacks, and may cover several fragments. Returns the number of fragments.
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

// If a more urgent chunk waits, puts this one back into the queue for the ranks still to be served.
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
