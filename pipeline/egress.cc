// The packets that a pipeline sends: replies first, then results of tenants and jobs in turns
// (egress_turns.h). Within the turn of a job its parts have one order: by priority, then by age.
#include "pipeline/egress.h"

#include <algorithm>
#include <bit>

#include "nic/wire/path_probe.h"
#include "nic/wire/tag.h"
#include "pipeline/result_maker.h"
#include "pipeline/round_tracing.h"

namespace pbox::pipeline {
namespace {

const EgressPlace* earlier(const EgressPlace* one, const EgressPlace* other) {
  if (one == nullptr || other == nullptr) return one != nullptr ? one : other;
  return other->is_before(*one) ? other : one;
}

template <typename Queued>
const EgressPlace* place_of(const Queued* queued) {
  return queued != nullptr ? &queued->place : nullptr;
}

// Returns the place of the next first copy of a result that the shard sends; null if none waits.
const EgressPlace* next_place(const JobShard& shard) {
  const EgressQueue::Cursor& cursor = shard.egress.cursor;
  const EgressPlace* next = cursor.count > 0 ? &cursor.group[0].place : nullptr;
  next = earlier(next, place_of(shard.egress.top()));
  if (!shard.is_relaxed()) {
    return earlier(next, place_of(shard.egress.top_answer()));
  }
  return shard.reply_cursor.ranks.empty() ? next : earlier(next, &shard.reply_place);
}

const EgressPlace* next_resend_place(const JobShard& shard) {
  return place_of(shard.egress.top_resend());
}

// Returns the part whose place comes first; null if no part has one.
template <typename Place>
JobShard* first_shard(const EgressJob& job, const Place& place) {
  if (job.shards.size() == 1) {
    return place(*job.shards[0]) != nullptr ? job.shards[0] : nullptr;
  }
  JobShard* first = nullptr;
  const EgressPlace* best = nullptr;
  for (JobShard* shard : job.shards) {
    const EgressPlace* one = place(*shard);
    if (earlier(best, one) == best) continue;
    best = one;
    first = shard;
  }
  return first;
}

// Returns the part that has the job's oldest resend. Some part must have one.
JobShard& with_oldest_resend(const EgressJob& job) {
  JobShard* oldest = nullptr;
  uint64_t sequence = UINT64_MAX;
  for (JobShard* shard : job.shards) {
    const Answer* one = shard->egress.oldest_resend();
    if (one == nullptr || one->place.sequence >= sequence) continue;
    sequence = one->place.sequence;
    oldest = shard;
  }
  PBOX_DCHECK(oldest != nullptr);
  return *oldest;
}

}  // namespace

Egress::Egress(EngineContext& context, FlightRecording& flight)
    : context_(context), flight_(flight), replies_(kReplyCapacity) {}

std::span<const nic::TxPacket> Egress::to_send() {
  if (outgoing_begin_ == outgoing_end_) {
    outgoing_begin_ = 0;
    outgoing_end_ =
        turns_.fill_burst(fill_replies(0), outgoing_.size(),
                          [this](const EgressJob& job, EgressRoom& room) { fill_job(job, room); });
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
    // The payload of the answer to a path probe is all zero, and longer than that of a STATUS.
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

void Egress::fill_job(const EgressJob& job, EgressRoom& room) {
  PBOX_DCHECK(!job.shards.empty() && room.limit <= outgoing_.size());
  fill_resends(job, room);
  while (!room.is_used_up()) {
    JobShard* shard = first_shard(job, next_place);
    if (shard == nullptr) return;
    if (shard->is_relaxed()) {
      fill_due_replies(*shard, room);
    } else if (shard->egress.cursor.count > 0 || shard->egress.top() != nullptr) {
      fill_fan_out(*shard, room);
    } else {
      fill_answer(*shard, room);
    }
  }
}

// A resend goes before first copies of the same priority, because its worker waits for it already,
// and after first copies that are more urgent. One packet is for the oldest resend, whatever its
// priority, so that none starves. While first copies wait too, resends take at most half of the
// job's turn and of the burst: ranks that ask again and again, or with a false mask, cannot keep
// the others from their results.
void Egress::fill_resends(const EgressJob& job, EgressRoom& room) {
  if (first_shard(job, next_resend_place) == nullptr) return;
  const JobShard* waiting = first_shard(job, next_place);
  const int32_t least = waiting != nullptr ? next_place(*waiting)->priority : INT32_MIN;
  EgressRoom share = room;
  if (waiting != nullptr) {
    share.bytes -= room.bytes / 2;
    share.limit = room.filled + (room.limit - room.filled) / 2;
  }
  const int64_t bytes = share.bytes;
  if (!share.is_used_up()) {
    PBOX_DCHECK(share.filled < share.limit && share.bytes > 0);
    JobShard& shard = with_oldest_resend(job);
    Answer oldest;
    shard.egress.pop_oldest_resend(oldest);
    EgressRoom one = share;
    one.limit = one.filled + 1;
    resend(shard, oldest, one);
    share.filled = one.filled;
    share.bytes = one.bytes;
  }
  while (!share.is_used_up()) {
    JobShard* shard = first_shard(job, next_resend_place);
    if (shard == nullptr || shard->egress.top_resend()->place.priority < least) break;
    Answer next;
    shard->egress.pop_resend(next);
    resend(*shard, next, share);
  }
  PBOX_DCHECK(room.filled <= share.filled && share.filled <= share.limit);
  room.filled = share.filled;
  room.bytes -= bytes - share.bytes;
}

void Egress::resend(JobShard& shard, Answer& asked, EgressRoom& room) {
  PBOX_DCHECK(asked.chunk != nullptr && asked.mask != 0);
  const size_t before = room.filled;
  fill_fragments(shard, asked, wire::flag::kRetransmission, room);
  context_.counters.add(Counter::kResultsResent, room.filled - before);
  if (asked.mask != 0) shard.egress.give_back_resend(asked);
}

void Egress::fill_answer(JobShard& shard, EgressRoom& room) {
  Answer answer;
  if (!shard.egress.pop_answer(answer)) return;
  PBOX_DCHECK(answer.chunk != nullptr && answer.mask != 0);
  fill_fragments(shard, answer, 0, room);
  if (answer.mask != 0) shard.egress.give_back_answer(answer);
}

// Makes packets of as many fragments as there is room for. The other fragments stay in the mask.
void Egress::fill_fragments(JobShard& shard, Answer& asked, uint8_t flags, EgressRoom& room) {
  Chunk& chunk = *asked.chunk;
  PBOX_DCHECK(asked.rank < shard.worker_count());
  PBOX_DCHECK(asked.in_full || (asked.mask & ~chunk.full_mask) == 0);
  const bool is_wanted = chunk.applies_on_arrival()
                             ? chunk.sync->awaits(asked.rank, asked.round)
                             : asked.round + 1 == chunk.open_round() && !is_replacing(chunk);
  Session& session = shard.sessions()[asked.rank];
  // Since it asked, the rank has become a new process, or has asked for weights in full.
  const bool has_wrong_form =
      chunk.sync != nullptr && !asked.in_full && replies_in_full(chunk, asked.rank);
  // The rank has consumed the result, is excluded, or has rejoined and has no known address yet.
  if (!is_wanted || has_wrong_form || !session.present || !session.reachable) {
    asked.mask = 0;
    return;
  }
  const ResultMaker maker(shard, session, chunk, chunk.open_round() - 1, asked.in_full,
                          context_.tag);
  const uint64_t zeros = named_zeros(chunk, session, chunk.open_round() - 1);
  while (asked.mask != 0 && !room.is_used_up()) {
    const auto fragment = static_cast<uint32_t>(__builtin_ctzll(asked.mask));
    if ((zeros >> fragment & 1) != 0) {
      const uint64_t named = maker.alike(fragment, asked.mask & zeros);
      make_zeros(maker, named, flags, room);
      asked.mask &= ~named;
      continue;
    }
    const uint32_t covered = make_reply(maker, chunk, asked.rank, fragment, flags, room.filled);
    asked.mask &= ~(wire::full_mask(covered) << fragment);
    room.take(outgoing_[room.filled].header.payload_bytes);
  }
}

// Makes the group's packets for one worker. Between workers, a chunk that is more urgent goes
// before the rest of the group.
void Egress::fill_fan_out(JobShard& shard, EgressRoom& room) {
  EgressQueue::Cursor& cursor = shard.egress.cursor;
  if (cursor.count > 0 && !cursor.is_within_worker()) give_way(shard.egress);
  if (cursor.count == 0 && !begin_fan_out(shard)) return;
  PBOX_DCHECK(cursor.index <= cursor.count && cursor.step < shard.worker_count());
  const uint32_t rank = (cursor.step + cursor.rotation) % shard.worker_count();
  fill_group(shard, shard.sessions()[rank], room);
  if (cursor.index < cursor.count) return;  // the burst is full, or the job's turn is over
  cursor.index = 0;
  if (++cursor.step == shard.worker_count()) cursor.count = 0;
}

void Egress::give_way(EgressQueue& egress) {
  EgressQueue::Cursor& cursor = egress.cursor;
  PBOX_DCHECK(cursor.count > 0 && !cursor.is_within_worker());
  const FanOut* next = egress.top();
  if (next == nullptr || next->place.priority <= cursor.group[cursor.count - 1].place.priority) {
    return;
  }
  for (uint32_t index = 0; index < cursor.count; ++index) {
    FanOut rest = cursor.group[index];
    rest.step = cursor.step;
    rest.rotation = cursor.rotation;
    egress.give_back(rest);
  }
  cursor.count = 0;
}

// Takes the next chunk from the queue, and a second one if both can begin at the same worker.
bool Egress::begin_fan_out(JobShard& shard) {
  EgressQueue& egress = shard.egress;
  EgressQueue::Cursor& cursor = egress.cursor;
  PBOX_DCHECK(cursor.count == 0);
  FanOut& first = cursor.group[0];
  if (!egress.pop(first)) return false;
  cursor.step = first.step;
  cursor.rotation =
      first.step > 0 ? first.rotation : (first.chunk->id + first.round) % shard.worker_count();
  PBOX_DCHECK(cursor.step < shard.worker_count() && cursor.rotation < shard.worker_count());
  cursor.index = cursor.fragment = 0;
  cursor.count = 1;
  const FanOut* second = egress.top();
  const bool fits = second != nullptr && second->step == first.step &&
                    (second->step == 0 || second->rotation == first.rotation);
  if (fits && egress.pop(cursor.group[1])) cursor.count = 2;
  return true;
}

// Makes the rest of the group's packets for one worker.
void Egress::fill_group(JobShard& shard, Session& session, EgressRoom& room) {
  EgressQueue::Cursor& cursor = shard.egress.cursor;
  PBOX_DCHECK(cursor.count <= cursor.group.size());
  for (; cursor.index < cursor.count; ++cursor.index, cursor.fragment = 0) {
    const FanOut& at = cursor.group[cursor.index];
    PBOX_DCHECK(wire::round_distance(at.round + 1, at.chunk->open_round()) <= 0);
    // No copy is needed: an exclusion has finished the next round, so every rank has this result.
    if (at.round + 1 != at.chunk->open_round() || at.chunk->up.is_sent) continue;
    // A rank that has rejoined has no known address until its first packet, which asks for this.
    const bool sends = session.present && session.reachable;
    if (sends && !fill_copy(shard, session, at, room)) return;
    if (cursor.step + 1 < shard.worker_count()) continue;
    at.chunk->fanned_out_rounds = at.round + 1;
    flight_.record_left(shard, at);
    if (shard.trace != nullptr) [[unlikely]] {
      trace_event(shard, *at.chunk, at.round, TraceEvent::Kind::kSent);
    }
  }
}

// Makes the packets of a result for one worker, from the cursor's fragment on. Returns false if the
// room is used up before the last one.
bool Egress::fill_copy(JobShard& shard, Session& session, const FanOut& at, EgressRoom& room) {
  const ResultMaker maker(shard, session, *at.chunk, at.round, at.chunk->deltas.is_result_full,
                          context_.tag);
  const bool announces =
      shard.delivery == wire::Delivery::kPull ||
      (shard.is_collective && !finished_shape(*at.chunk).shape.is_sent_to(session.rank));
  const TableRows* const table = at.chunk->table;
  const uint32_t packets = announces ? 1 : maker.fragment_count();
  PBOX_DCHECK(packets > 0 && packets <= limits::kFragmentCountMax);
  const uint64_t zeros = announces ? 0 : named_zeros(*at.chunk, session, at.round);
  uint32_t& fragment = shard.egress.cursor.fragment;
  while (fragment < packets) {
    if (room.is_used_up()) return false;
    nic::TxPacket& packet = outgoing_[room.filled];
    uint32_t covered = 1;
    if ((zeros >> fragment & 1) != 0) [[unlikely]] {
      const uint64_t named = maker.alike(fragment, zeros);
      const bool is_lowest = std::countr_zero(named) == static_cast<int>(fragment);
      if (is_lowest) make_zeros(maker, named, 0, room);
      ++fragment;  // if it is not the lowest, it has been named already
      continue;
    }
    if (announces) {
      make_announcement(shard, session, at, room.filled);
    } else if (table != nullptr) {
      covered = maker.make_rows(table->layout, table->rows(at.round), fragment, 0,
                                rows_room_.at(room.filled), room_.at(room.filled), packet);
    } else if (const auto alike = maker.run_length(fragment); alike > 0) {
      const auto others = static_cast<uint32_t>(std::countr_zero(zeros >> fragment));
      const size_t run = room.fits(std::min(alike, others), maker.fragment_bytes());
      room.take_run(run, maker.make_run(fragment, {&packet, run}));
      fragment += static_cast<uint32_t>(run);
      continue;
    } else {
      maker.make(fragment, 0, room_.at(room.filled), packet);
    }
    room.take(packet.header.payload_bytes);
    fragment += covered;
  }
  return true;
}

// Makes the packet that names these fragments of a result, which are zero.
void Egress::make_zeros(const ResultMaker& maker, uint64_t fragments, uint8_t flags,
                        EgressRoom& room) {
  PBOX_DCHECK(!room.is_used_up());
  const size_t index = room.filled;
  maker.make_zeros(fragments, flags, outgoing_zeros_[index], room_.at(index), outgoing_[index]);
  room.take(sizeof(wire::ZerosPayload));
  context_.counters.add(Counter::kZeroResults, static_cast<uint64_t>(std::popcount(fragments)));
}

// Tells the worker that the chunk is finished, by a STATUS that it did not ask for. Used with
// delivery `pull`, and for ranks that do not get a slot's result.
void Egress::make_announcement(const JobShard& shard, Session& session, const FanOut& at,
                               size_t index) {
  wire::StatusPayload& status = outgoing_status_[index];
  PBOX_DCHECK(index < outgoing_.size());
  status = {.received_mask = finished_push_mask(shard, *at.chunk), .finished_round = at.round + 1};
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
