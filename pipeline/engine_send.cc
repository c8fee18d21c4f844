// A box's packets: replies first, then per job, in turns (deficit round robin), the results that
// are sent again, the fan-out of finished chunks, and answers to PULL.
#include "base/clock.h"
#include "nic/wire/chunk_layout.h"
#include "pipeline/engine.h"
#include "pipeline/sync/rules.h"

namespace pbox::pipeline {
namespace {

// Bytes that a job may send before the next job's turn (deficit round robin: Shreedhar and
// Varghese, SIGCOMM 1995). Two of the largest packets, so that every turn sends something.
constexpr int64_t kQuantumBytes = 2 * int64_t{limits::kPacketBytesMax};

// Makes the packets of one result for one worker. The header fields that they share are put
// together once.
class ResultMaker {
 public:
  ResultMaker(const JobShard& shard, Session& session, const Chunk& chunk, uint32_t round,
              const wire::TagPolicy& tag)
      : session_(session),
        result_(chunk.result[round & 1]),
        tag_(tag),
        chunk_bytes_(chunk.wire_bytes),
        fragment_bytes_(shard.fragment_bytes),
        last_fragment_(chunk.fragment_count - 1u),
        workers_(shard.worker_count()),
        contributors_(chunk.contributors[round & 1]) {
    PBOX_DCHECK(result_ != nullptr);
    PBOX_DCHECK(session.rank < shard.worker_count());
    PBOX_DCHECK((shard.sync.model == wire::SyncModel::kBsp) == (chunk.sync == nullptr));
    wire::Header header;
    header.set_type(wire::PacketType::kResult);
    header.spi = session.spi | wire::kSpiToWorker;
    header.epoch = shard.epoch;
    header.chunk = chunk.id;
    header.round = round;
    header.credit = static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
    header.dtype_scale = static_cast<uint16_t>(chunk.dtype);
    header.generation = shard.generation;
    if (wire::applies_on_arrival(shard.sync.model)) {
      // A parked read is not answered, whatever leaves for its rank: the label then stays one round
      // behind. Where workers add their own updates to the data, the label is exact for each
      // fragment.
      const sync::Progress& progress = chunk.sync->progress;
      const bool exact = sync::reads_cached(shard.sync);
      const bool is_parked = !exact && progress.is_parked(session.rank);
      header.timestamp_us =
          static_cast<uint32_t>(progress.next(session.rank) - (is_parked ? 1 : 0));
      applied_mask_ = exact ? chunk.claimed[session.rank] : 0;
    } else if (shard.sync.model == wire::SyncModel::kDrop) {
      const sync::Pushed& pushed = chunk.sync->pushed[session.rank];
      header.timestamp_us = pushed.round;
      applied_mask_ = pushed.counted;
    }
    words_ = std::bit_cast<wire::HeaderWords>(header);
  }

  // The fields that differ are set in whole words. If narrow stores wrote them, the tag's wider
  // loads would stall on those stores, once per word and packet.
  void make(uint32_t fragment, uint8_t flags, nic::TxPacket& packet) const {
    PBOX_DCHECK(fragment <= last_fragment_);
    const uint32_t bytes = wire::fragment_length(chunk_bytes_, fragment_bytes_, fragment);
    if (fragment == last_fragment_) flags |= wire::flag::kLast;
    wire::HeaderWords words = words_;
    words[0] |= uint64_t{flags} << (8 * offsetof(wire::Header, flags)) |
                uint64_t{bytes} << (8 * offsetof(wire::Header, payload_bytes));
    PBOX_DCHECK(session_.next_packet_number > 0);
    words[1] = session_.next_packet_number++;
    words[4] += applied_mask_ >> fragment & 1;
    words[3] |= uint64_t{fragment} << (8 * (offsetof(wire::Header, fragment) % 8));
    if (contributors_ != nullptr && contributors_[fragment] != workers_) {
      set_contributors(contributors_[fragment], words);
    }
    static_assert(offsetof(wire::Header, packet_number) == 8);
    static_assert(offsetof(wire::Header, fragment) / 8 == 3);
    static_assert(offsetof(wire::Header, timestamp_us) == 4 * 8);
    // Word by word: a bit_cast of the whole header is compiled to one store per field.
    auto* header = reinterpret_cast<std::byte*>(&packet.header);
    for (size_t word = 0; word < words.size(); ++word) {
      std::memcpy(header + word * sizeof(words[word]), &words[word], sizeof(words[word]));
    }
    packet.to = &session_.endpoint;
    packet.payload = result_ + size_t{fragment} * fragment_bytes_;
    packet.tag = wire::make_tag(tag_, words, packet.payload, bytes);
  }

 private:
  static void set_contributors(uint16_t contributors, wire::HeaderWords& words) {
    words[0] |= uint64_t{wire::flag::kPartial} << (8 * offsetof(wire::Header, flags));
    words[4] |= uint64_t{contributors} << (8 * (offsetof(wire::Header, dtype_scale) % 8) + 4);
    static_assert(offsetof(wire::Header, dtype_scale) / 8 == 4);
  }

  Session& session_;
  const std::byte* result_;
  const wire::TagPolicy& tag_;
  uint32_t chunk_bytes_;
  uint32_t fragment_bytes_;
  uint32_t last_fragment_;
  uint32_t workers_;
  const uint16_t* contributors_;  // by fragment; null: all workers are in every result
  uint64_t applied_mask_ = 0;     // fragments that include one more of the rank's own rounds
  wire::HeaderWords words_{};
};

}  // namespace

std::span<const nic::TxPacket> Engine::to_send() {
  if (outgoing_begin_ == outgoing_end_) {
    outgoing_begin_ = 0;
    size_t filled = fill_replies(0);
    size_t idle_shards = 0;
    while (filled < outgoing_.size() && idle_shards < shards_.size()) {
      PBOX_DCHECK(next_shard_ < shards_.size());
      JobShard& shard = *shards_[next_shard_];
      const size_t before = filled;
      filled = fill_shard(shard, filled, outgoing_.size());
      idle_shards = filled == before ? idle_shards + 1 : 0;
      if (filled < outgoing_.size()) next_shard_ = (next_shard_ + 1) % shards_.size();
    }
    outgoing_end_ = filled;
    results_changed_ = false;
  } else if (results_changed_) {
    refresh_unsent();
  }
  PBOX_DCHECK(outgoing_begin_ <= outgoing_end_ && outgoing_end_ <= outgoing_.size());
  return {outgoing_.data() + outgoing_begin_, outgoing_end_ - outgoing_begin_};
}

void Engine::sent(size_t count) {
  PBOX_DCHECK(outgoing_begin_ + count <= outgoing_end_);
  uint64_t bytes = 0;
  for (size_t index = 0; index < count; ++index) {
    bytes += limits::kPacketOverheadBytes + outgoing_[outgoing_begin_ + index].header.payload_bytes;
  }
  outgoing_begin_ += count;
  counters_.add(Counter::kTxPackets, count);
  counters_.add(Counter::kTxBytes, bytes);
}

size_t Engine::fill_replies(size_t filled) {
  PBOX_DCHECK(reply_tail_ - reply_head_ <= kReplyCapacity);
  while (filled < outgoing_.size() && reply_head_ != reply_tail_) {
    const Reply& reply = replies_[reply_head_++ % kReplyCapacity];
    outgoing_[filled] = reply.packet;
    outgoing_status_[filled] = reply.status;
    outgoing_[filled].payload = reinterpret_cast<const std::byte*>(&outgoing_status_[filled]);
    ++filled;
  }
  return filled;
}

size_t Engine::fill_shard(JobShard& shard, size_t filled, size_t limit) {
  const bool has_work = shard.egress.cursor.count > 0 || !shard.egress.empty() ||
                        shard.egress.has_resend() || shard.egress.has_answer() ||
                        !shard.reply_cursor.ranks.empty();
  if (!has_work) {
    shard.egress_deficit_bytes = 0;
    return filled;
  }
  if (shard.egress_deficit_bytes <= 0) shard.egress_deficit_bytes += kQuantumBytes;
  filled = fill_resends(shard, filled, limit);
  if (shard.sync.model != wire::SyncModel::kBsp) return fill_due_replies(shard, filled, limit);
  filled = fill_fan_out(shard, filled, limit);
  return fill_answers(shard, filled, limit);
}

size_t Engine::fill_resends(JobShard& shard, size_t filled, size_t limit) {
  Resend resend;
  while (filled < limit && shard.egress_deficit_bytes > 0 && shard.egress.pop_resend(resend)) {
    const size_t before = filled;
    filled = fill_fragments(shard, resend, wire::flag::kRetransmission, filled, limit);
    counters_.add(Counter::kResultsResent, filled - before);
    if (resend.mask != 0) shard.egress.push_resend(resend);
  }
  return filled;
}

// Jobs whose model is not BSP: replies carry the chunk as it is when they leave.
size_t Engine::fill_due_replies(JobShard& shard, size_t filled, size_t limit) {
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
    const ResultMaker maker(shard, session, *at.chunk, at.chunk->open_round() - 1, options_.tag);
    const bool sends = session.present && session.reachable;
    for (; sends && at.fragment < at.chunk->fragment_count; ++at.fragment) {
      if (filled == limit || shard.egress_deficit_bytes <= 0) return filled;
      maker.make(at.fragment, 0, outgoing_[filled]);
      shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
      ++filled;
    }
    at.ranks.remove(at.rank);
  }
  return filled;
}

size_t Engine::fill_answers(JobShard& shard, size_t filled, size_t limit) {
  Answer answer;
  while (filled < limit && shard.egress_deficit_bytes > 0 && shard.egress.pop_answer(answer)) {
    filled = fill_fragments(shard, answer, 0, filled, limit);
    if (answer.mask != 0) shard.egress.return_answer(answer);
  }
  return filled;
}

// Weights may change after a full port has refused packets that point at them. Their labels must be
// true when they leave.
void Engine::refresh_unsent() {
  results_changed_ = false;
  for (size_t index = outgoing_begin_; index < outgoing_end_; ++index) {
    nic::TxPacket& packet = outgoing_[index];
    const SessionEntry& entry = sessions_[wire::spi_index(packet.header.spi)];
    const bool is_result = packet.header.type() == wire::PacketType::kResult;
    if (!is_result || entry.shard == nullptr) continue;
    if ((entry.spi | wire::kSpiToWorker) != packet.header.spi) continue;  // a former session's
    if (entry.shard->sync.model == wire::SyncModel::kBsp) continue;
    PBOX_DCHECK(entry.shard->find(packet.header.chunk) != nullptr);
    const Chunk& chunk = *entry.shard->find(packet.header.chunk);
    const ResultMaker maker(*entry.shard, *entry.session, chunk, chunk.open_round() - 1,
                            options_.tag);
    maker.make(packet.header.fragment, packet.header.flags & wire::flag::kRetransmission, packet);
  }
}

// Makes as many of the fragments as there is room for. The others stay in the mask.
size_t Engine::fill_fragments(JobShard& shard, Resend& asked, uint8_t flags, size_t filled,
                              size_t limit) {
  Chunk& chunk = *asked.chunk;
  PBOX_DCHECK(asked.rank < shard.worker_count());
  PBOX_DCHECK((asked.mask & ~chunk.full_mask) == 0);
  const bool is_wanted = chunk.applies_on_arrival() ? chunk.sync->awaits(asked.rank, asked.round)
                                                    : asked.round + 1 == chunk.open_round();
  Session& session = shard.sessions()[asked.rank];
  if (!is_wanted || !session.present) {  // the rank has consumed it meanwhile, or is excluded
    asked.mask = 0;
    return filled;
  }
  const ResultMaker maker(shard, session, chunk, chunk.open_round() - 1, options_.tag);
  while (asked.mask != 0 && filled < limit && shard.egress_deficit_bytes > 0) {
    const auto fragment = static_cast<uint32_t>(__builtin_ctzll(asked.mask));
    asked.mask &= asked.mask - 1;
    maker.make(fragment, flags, outgoing_[filled]);
    shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
    ++filled;
  }
  return filled;
}

size_t Engine::fill_fan_out(JobShard& shard, size_t filled, size_t limit) {
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

bool Engine::begin_fan_out(EgressQueue& egress) {
  EgressQueue::Cursor& cursor = egress.cursor;
  PBOX_DCHECK(cursor.count == 0);
  cursor.step = cursor.index = cursor.fragment = 0;
  while (cursor.count < cursor.group.size() && egress.pop(cursor.group[cursor.count])) {
    ++cursor.count;
  }
  return cursor.count > 0;
}

// Makes the rest of the group's packets for one worker.
size_t Engine::fill_group(JobShard& shard, Session& session, size_t filled, size_t limit) {
  EgressQueue::Cursor& cursor = shard.egress.cursor;
  PBOX_DCHECK(cursor.count <= cursor.group.size());
  for (; cursor.index < cursor.count; ++cursor.index, cursor.fragment = 0) {
    const FanOut& at = cursor.group[cursor.index];
    PBOX_DCHECK(wire::round_distance(at.round + 1, at.chunk->open_round()) <= 0);
    // Void: an exclusion has finished the next round, so every rank has this result.
    if (at.round + 1 != at.chunk->open_round()) continue;
    // A rank that has rejoined has no known address until its first packet arrives. It asks then.
    const bool sends = session.present && session.reachable;
    const ResultMaker maker(shard, session, *at.chunk, at.round, options_.tag);
    const bool announces = shard.delivery == wire::Delivery::kPull;
    const uint32_t packets = announces ? 1 : at.chunk->fragment_count;
    for (; sends && cursor.fragment < packets; ++cursor.fragment) {
      if (filled == limit || shard.egress_deficit_bytes <= 0) return filled;
      if (announces) {
        make_announcement(shard, session, at, filled);
      } else {
        maker.make(cursor.fragment, 0, outgoing_[filled]);
      }
      shard.egress_deficit_bytes -= outgoing_[filled].header.payload_bytes;
      ++filled;
    }
    if (cursor.step + 1 < shard.worker_count()) continue;
    at.chunk->fanned_out_rounds = at.round + 1;
    record_left(shard, at);
    if (shard.trace != nullptr) [[unlikely]] {
      trace_round(shard, *at.chunk, at.round, TraceEvent::Kind::kSent);
    }
  }
  return filled;
}

// Delivery `pull`: tells the worker that the chunk is finished, by a STATUS that it did not ask
// for.
void Engine::make_announcement(const JobShard& shard, Session& session, const FanOut& at,
                               size_t index) {
  wire::StatusPayload& status = outgoing_status_[index];
  PBOX_DCHECK(index < outgoing_.size());
  status = {.received_mask = at.chunk->full_mask, .finished_round = at.round + 1};
  nic::TxPacket& packet = outgoing_[index];
  packet.to = &session.endpoint;
  packet.payload = reinterpret_cast<const std::byte*>(&status);
  packet.header = {};
  packet.header.set_type(wire::PacketType::kStatus);
  packet.header.payload_bytes = sizeof(status);
  packet.header.spi = session.spi | wire::kSpiToWorker;
  packet.header.packet_number = session.next_packet_number++;
  packet.header.epoch = shard.epoch;
  packet.header.chunk = at.chunk->id;
  packet.header.round = at.round;
  packet.header.credit = static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
  packet.header.generation = shard.generation;
  packet.tag = wire::make_tag(options_.tag, packet.header, packet.payload);
  counters_.add(Counter::kAnnounced);
}

void Engine::send_status(const JobShard& shard, Session& session, const Chunk& chunk,
                         const wire::Header& asked) {
  PBOX_DCHECK(session.rank < shard.worker_count() && !chunk.has_own_rounds());
  wire::StatusPayload status;
  status.finished_round = chunk.open_round();
  if (asked.round == chunk.open_round()) {
    status.received_mask = chunk.claimed[session.rank];
    const uint32_t workers = shard.worker_count();
    for (uint32_t rank = workers; rank-- > 0;) {
      if (!shard.sessions()[rank].present || chunk.claimed[rank] == chunk.full_mask) continue;
      ++status.missing_workers;
      status.first_missing_rank = static_cast<uint16_t>(rank);
    }
    if (status.missing_workers > 0) add_from_ledger(shard, chunk, status);
  } else {
    status.received_mask = chunk.full_mask;
  }
  answer(shard, session, asked, status);
}

void Engine::add_from_ledger(const JobShard& shard, const Chunk& chunk,
                             wire::StatusPayload& status) const {
  PBOX_DCHECK(status.first_missing_rank < shard.worker_count());
  const uint32_t index = shard.index_of(chunk);
  if (shard.stragglers.is_open(index)) {
    const uint64_t first_ns = shard.stragglers.first_arrival_ns(index);
    status.waited_ms = static_cast<uint32_t>((now_ns_ - first_ns) / kNanosPerMilli);
  }
  const uint64_t rounds = shard.rounds_finished.get();
  const uint64_t last = shard.sessions()[status.first_missing_rank].last_arrivals.get();
  status.last_percent = static_cast<uint16_t>(rounds == 0 ? 0 : 100 * last / rounds);
}

void Engine::answer(const JobShard& shard, Session& session, const wire::Header& asked,
                    const wire::StatusPayload& status) {
  wire::Header header;
  header.set_type(wire::PacketType::kStatus);
  header.payload_bytes = sizeof(status);
  header.epoch = shard.epoch;
  header.chunk = asked.chunk;
  header.round = asked.round;
  header.timestamp_us = asked.timestamp_us;
  header.generation = shard.generation;
  if (push_reply(session, header, status)) counters_.add(Counter::kStatusSent);
}

void Engine::send_grants(JobShard& shard) {
  for (Session& session : shard.sessions()) {
    // A rank that is not reachable yet learns its credit from the reply to its JOIN.
    if (!session.present || !session.reachable) continue;
    wire::Header header;
    header.set_type(wire::PacketType::kGrant);
    header.epoch = shard.epoch;
    header.generation = shard.generation;
    push_reply(session, header, {});
  }
}

bool Engine::push_reply(Session& session, const wire::Header& header,
                        const wire::StatusPayload& status) {
  if (reply_tail_ - reply_head_ >= kReplyCapacity) return false;
  PBOX_DCHECK(session.present && session.reachable);
  Reply& reply = replies_[reply_tail_++ % kReplyCapacity];
  reply.packet.to = &session.endpoint;
  reply.packet.header = header;
  reply.packet.header.spi = session.spi | wire::kSpiToWorker;
  reply.packet.header.packet_number = session.next_packet_number++;
  reply.packet.header.credit =
      static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
  reply.status = status;
  reply.packet.tag = wire::make_tag(options_.tag, reply.packet.header,
                                    reinterpret_cast<const std::byte*>(&reply.status));
  return true;
}

}  // namespace pbox::pipeline
