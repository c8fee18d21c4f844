// A box's packets: replies first, then per tenant and job, in turns (egress_turns.h), the results
// that are sent again, the fan-out of finished chunks, and answers to PULL.
#include "pipeline/egress.h"

#include "nic/wire/path_probe.h"
#include "nic/wire/tag.h"
#include "pipeline/result_maker.h"
#include "pipeline/round_tracing.h"

namespace pbox::pipeline {

Egress::Egress(EngineContext& context, FlightRecording& flight)
    : context_(context), flight_(flight), replies_(kReplyCapacity) {}

std::span<const nic::TxPacket> Egress::to_send() {
  if (outgoing_begin_ == outgoing_end_) {
    outgoing_begin_ = 0;
    outgoing_end_ = turns_.fill_burst(
        fill_replies(0), outgoing_.size(),
        [this](JobShard& shard, size_t filled) { return fill_shard(shard, filled); });
    results_changed_ = false;
  } else if (results_changed_) {
    refresh_unsent();
  }
  PBOX_DCHECK(outgoing_begin_ <= outgoing_end_ && outgoing_end_ <= outgoing_.size());
  return {outgoing_.data() + outgoing_begin_, outgoing_end_ - outgoing_begin_};
}

void Egress::drop_unsent() {
  outgoing_begin_ = outgoing_end_ = 0;
}

void Egress::remove(JobShard& shard) {
  turns_.remove(shard);
  drop_unsent();
  reply_head_ = reply_tail_ = 0;
}

void Egress::sent(size_t count) {
  PBOX_DCHECK(outgoing_begin_ + count <= outgoing_end_);
  uint64_t bytes = 0;
  for (size_t index = 0; index < count; ++index) {
    bytes += limits::kPacketOverheadBytes + outgoing_[outgoing_begin_ + index].header.payload_bytes;
  }
  outgoing_begin_ += count;
  context_.counters.add(Counter::kTxPackets, count);
  context_.counters.add(Counter::kTxBytes, bytes);
}

size_t Egress::fill_replies(size_t filled) {
  PBOX_DCHECK(reply_tail_ - reply_head_ <= kReplyCapacity);
  while (filled < outgoing_.size() && reply_head_ != reply_tail_) {
    const Reply& reply = replies_[reply_head_++ % kReplyCapacity];
    Session& session = *reply.session;
    if ((session.spi | wire::kSpiToWorker) != reply.header.spi) continue;  // a former session's
    // The payload of a path probe's answer is longer than a STATUS, and zero.
    static constexpr std::array<std::byte, limits::kFragmentBytesMax> kZeros{};
    nic::TxPacket& packet = outgoing_[filled];
    outgoing_status_[filled] = reply.status;
    outgoing_paths_[filled] = reply.path;
    packet.to = &outgoing_paths_[filled].to;
    packet.from = &outgoing_paths_[filled].from;
    packet.header = reply.header;
    packet.payload = wire::is_path_probe(reply.header)
                         ? kZeros.data()
                         : reinterpret_cast<const std::byte*>(&outgoing_status_[filled]);
    seal(session, filled++);
  }
  return filled;
}

void Egress::seal(Session& session, size_t index) {
  session.seal.seal(context_.tag, outgoing_[index], room_.at(index));
}

size_t Egress::fill_shard(JobShard& shard, size_t filled) {
  const size_t limit = outgoing_.size();
  const bool has_work = shard.egress.cursor.count > 0 || !shard.egress.empty() ||
                        shard.egress.has_resend() || shard.egress.has_answer() ||
                        !shard.reply_cursor.ranks.empty();
  if (!has_work) return filled;
  PBOX_DCHECK(shard.egress_deficit_bytes > 0);
  filled = fill_resends(shard, filled, limit);
  PBOX_DCHECK(filled <= limit);
  if (shard.sync.model != wire::SyncModel::kBsp) return fill_due_replies(shard, filled, limit);
  filled = fill_fan_out(shard, filled, limit);
  return fill_answers(shard, filled, limit);
}

// Resends go first, since somebody waits for them already. While first copies wait too, resends
// take at most half of the job's turn and of the burst: ranks that ask again and again, or with a
// spoofed mask, cannot keep the others from their results.
size_t Egress::fill_resends(JobShard& shard, size_t filled, size_t limit) {
  const bool others_wait = shard.egress.cursor.count > 0 || !shard.egress.empty() ||
                           shard.egress.has_answer() || !shard.reply_cursor.ranks.empty();
  const int64_t reserved_bytes = others_wait ? shard.egress_deficit_bytes / 2 : 0;
  if (others_wait) limit = filled + (limit - filled) / 2;
  shard.egress_deficit_bytes -= reserved_bytes;
  Resend resend;
  while (filled < limit && shard.egress_deficit_bytes > 0 && shard.egress.pop_resend(resend)) {
    PBOX_DCHECK(resend.chunk != nullptr);
    const size_t before = filled;
    filled = fill_fragments(shard, resend, wire::flag::kRetransmission, filled, limit);
    context_.counters.add(Counter::kResultsResent, filled - before);
    if (resend.mask != 0) shard.egress.push_resend(resend);
  }
  shard.egress_deficit_bytes += reserved_bytes;
  return filled;
}

// Jobs whose model is not BSP: replies carry the chunk as it is when they leave.
size_t Egress::fill_due_replies(JobShard& shard, size_t filled, size_t limit) {
  sync::ReplyCursor& at = shard.reply_cursor;
  FanOut next;
  while (filled < limit && shard.egress_deficit_bytes > 0) {
    if (at.ranks.empty()) {
      if (!shard.egress.pop(next)) break;
      sync::ChunkSync& waiting = *next.chunk->sync;
      PBOX_DCHECK(waiting.queued);
      at = {next.chunk, waiting.replies_due, next.chunk->id % shard.worker_count(), 0};
      waiting.replies_due = {};
      waiting.queued = false;
      continue;
    }
    if (!at.ranks.has(at.rank)) {
      const uint32_t rank = at.ranks.next(at.rank);
      at.rank = rank != sync::RankSet::kNone ? rank : at.ranks.next(0);
      at.fragment = 0;
    }
    PBOX_DCHECK(at.rank < shard.worker_count() && at.ranks.has(at.rank));
    Session& session = shard.sessions()[at.rank];
    const ResultMaker maker(shard, session, *at.chunk, at.chunk->open_round() - 1, context_.tag);
    const bool sends = session.present && session.reachable;
    for (; sends && at.fragment < at.chunk->fragment_count; ++at.fragment) {
      if (filled == limit || shard.egress_deficit_bytes <= 0) return filled;
      maker.make(at.fragment, 0, room_.at(filled), outgoing_[filled]);
      shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
      ++filled;
    }
    at.ranks.remove(at.rank);
  }
  return filled;
}

size_t Egress::fill_answers(JobShard& shard, size_t filled, size_t limit) {
  Answer answer;
  while (filled < limit && shard.egress_deficit_bytes > 0 && shard.egress.pop_answer(answer)) {
    PBOX_DCHECK(answer.chunk != nullptr && answer.mask != 0);
    filled = fill_fragments(shard, answer, 0, filled, limit);
    if (answer.mask != 0) shard.egress.return_answer(answer);
  }
  return filled;
}

// Weights may change after a full port has refused packets that point at them. Their labels must be
// true when they leave.
void Egress::refresh_unsent() {
  results_changed_ = false;
  for (size_t index = outgoing_begin_; index < outgoing_end_; ++index) {
    nic::TxPacket& packet = outgoing_[index];
    const SessionEntry& entry = context_.sessions.at(packet.header.spi);
    const bool is_result = packet.header.type() == wire::PacketType::kResult;
    if (!is_result || entry.shard == nullptr) continue;
    if ((entry.spi | wire::kSpiToWorker) != packet.header.spi) continue;  // a former session's
    if (entry.shard->sync.model == wire::SyncModel::kBsp) continue;
    PBOX_DCHECK(entry.shard->find(packet.header.chunk) != nullptr);
    const Chunk& chunk = *entry.shard->find(packet.header.chunk);
    const ResultMaker maker(*entry.shard, *entry.session, chunk, chunk.open_round() - 1,
                            context_.tag);
    maker.make(packet.header.fragment, packet.header.flags & wire::flag::kRetransmission,
               room_.at(index), packet);
  }
}

// Makes as many of the fragments as there is room for. The others stay in the mask.
size_t Egress::fill_fragments(JobShard& shard, Resend& asked, uint8_t flags, size_t filled,
                              size_t limit) {
  Chunk& chunk = *asked.chunk;
  PBOX_DCHECK(asked.rank < shard.worker_count());
  PBOX_DCHECK((asked.mask & ~chunk.full_mask) == 0);
  const bool is_wanted = chunk.applies_on_arrival() ? chunk.sync->awaits(asked.rank, asked.round)
                                                    : asked.round + 1 == chunk.open_round();
  Session& session = shard.sessions()[asked.rank];
  // The rank has consumed it meanwhile, is excluded, or has come back and was not heard yet.
  if (!is_wanted || !session.present || !session.reachable) {
    asked.mask = 0;
    return filled;
  }
  const ResultMaker maker(shard, session, chunk, chunk.open_round() - 1, context_.tag);
  while (asked.mask != 0 && filled < limit && shard.egress_deficit_bytes > 0) {
    const auto fragment = static_cast<uint32_t>(__builtin_ctzll(asked.mask));
    asked.mask &= asked.mask - 1;
    maker.make(fragment, flags, room_.at(filled), outgoing_[filled]);
    shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
    ++filled;
  }
  return filled;
}

size_t Egress::fill_fan_out(JobShard& shard, size_t filled, size_t limit) {
  PBOX_DCHECK(filled <= limit && limit <= outgoing_.size());
  EgressQueue::Cursor& cursor = shard.egress.cursor;
  while (filled < limit && shard.egress_deficit_bytes > 0) {
    if (cursor.count == 0 && !begin_fan_out(shard.egress)) break;
    PBOX_DCHECK(cursor.index <= cursor.count && cursor.step < shard.worker_count());
    const FanOut& first = cursor.group[0];
    const uint32_t rank = (cursor.step + first.chunk->id + first.round) % shard.worker_count();
    filled = fill_group(shard, shard.sessions()[rank], filled, limit);
    if (cursor.index < cursor.count) break;  // no room, or another job's turn
    cursor.index = 0;
    if (++cursor.step == shard.worker_count()) cursor.count = 0;
  }
  return filled;
}

bool Egress::begin_fan_out(EgressQueue& egress) {
  EgressQueue::Cursor& cursor = egress.cursor;
  PBOX_DCHECK(cursor.count == 0);
  cursor.step = cursor.index = cursor.fragment = 0;
  while (cursor.count < cursor.group.size() && egress.pop(cursor.group[cursor.count])) {
    ++cursor.count;
  }
  return cursor.count > 0;
}

// Makes the rest of the group's packets for one worker.
size_t Egress::fill_group(JobShard& shard, Session& session, size_t filled, size_t limit) {
  EgressQueue::Cursor& cursor = shard.egress.cursor;
  PBOX_DCHECK(cursor.count <= cursor.group.size());
  for (; cursor.index < cursor.count; ++cursor.index, cursor.fragment = 0) {
    const FanOut& at = cursor.group[cursor.index];
    PBOX_DCHECK(wire::round_distance(at.round + 1, at.chunk->open_round()) <= 0);
    // Void: an exclusion has finished the next round, so every rank has this result.
    if (at.round + 1 != at.chunk->open_round()) continue;
    // A rank that has rejoined has no known address until its first packet arrives. It asks then.
    const bool sends = session.present && session.reachable;
    const ResultMaker maker(shard, session, *at.chunk, at.round, context_.tag);
    const bool announces =
        shard.delivery == wire::Delivery::kPull ||
        (shard.is_collective && !finished_shape(*at.chunk).shape.is_sent_to(session.rank));
    const uint32_t packets = announces ? 1 : maker.fragment_count();
    PBOX_DCHECK(packets > 0 && packets <= limits::kFragmentCountMax);
    for (; sends && cursor.fragment < packets; ++cursor.fragment) {
      if (filled == limit || shard.egress_deficit_bytes <= 0) return filled;
      if (announces) {
        make_announcement(shard, session, at, filled);
      } else {
        maker.make(cursor.fragment, 0, room_.at(filled), outgoing_[filled]);
      }
      shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
      ++filled;
    }
    if (cursor.step + 1 < shard.worker_count()) continue;
    at.chunk->fanned_out_rounds = at.round + 1;
    flight_.record_left(shard, at);
    if (shard.trace != nullptr) [[unlikely]] {
      trace_round(shard, *at.chunk, at.round, TraceEvent::Kind::kSent);
    }
  }
  return filled;
}

// Delivery `pull`, and ranks that a slot's result is not for: tells the worker that the chunk is
// finished, by a STATUS that it did not ask for.
void Egress::make_announcement(const JobShard& shard, Session& session, const FanOut& at,
                               size_t index) {
  wire::StatusPayload& status = outgoing_status_[index];
  PBOX_DCHECK(index < outgoing_.size());
  status = {.received_mask = at.chunk->full_mask, .finished_round = at.round + 1};
  nic::TxPacket& packet = outgoing_[index];
  packet.to = &session.endpoint;
  packet.from = &session.local_address;
  packet.payload = reinterpret_cast<const std::byte*>(&status);
  packet.header = {};
  packet.header.set_type(wire::PacketType::kStatus);
  packet.header.payload_bytes = sizeof(status);
  packet.header.spi = session.spi | wire::kSpiToWorker;
  packet.header.epoch = shard.epoch;
  packet.header.chunk = at.chunk->id;
  packet.header.round = at.round;
  packet.header.credit = static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
  packet.header.generation = shard.generation;
  seal(session, index);
  context_.counters.add(Counter::kAnnounced);
}

}  // namespace pbox::pipeline
