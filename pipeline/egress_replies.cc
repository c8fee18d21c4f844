// Small packets that leave before any result: STATUS, which answers a packet, and GRANT.
#include "base/clock.h"
#include "nic/wire/path_probe.h"
#include "nic/wire/tag.h"
#include "pipeline/egress.h"
#include "pipeline/result_form.h"

namespace pbox::pipeline {
namespace {

// Returns the header of a STATUS that answers `asked`, without the fields that push_reply() sets.
wire::Header status_header(const JobShard& shard, const wire::Header& asked, size_t payload_bytes) {
  wire::Header header;
  header.set_type(wire::PacketType::kStatus);
  header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  header.epoch = shard.epoch;
  header.chunk = asked.chunk;
  header.round = asked.round;
  header.timestamp_us = asked.timestamp_us;
  header.generation = shard.generation;
  return header;
}

}  // namespace

void Egress::send_status(const JobShard& shard, Session& session, Chunk& chunk,
                         const wire::Header& asked) {
  PBOX_DCHECK(session.rank < shard.worker_count() && !chunk.has_own_rounds());
  wire::StatusPayload status;
  status.finished_round = chunk.open_round();
  if (asked.round == chunk.open_round()) {
    status.received_mask = chunk.claimed[session.rank];
    status.missing_workers = static_cast<uint16_t>(shard.missing_workers(chunk));
    if (status.missing_workers > 0) {
      status.first_missing_rank = static_cast<uint16_t>(shard.first_missing_rank(chunk));
      add_from_ledger(shard, chunk, status);
    }
  } else {
    status.received_mask = finished_push_mask(shard, chunk);
  }
  answer(shard, session, asked, status);
}

void Egress::add_from_ledger(const JobShard& shard, const Chunk& chunk,
                             wire::StatusPayload& status) const {
  PBOX_DCHECK(status.first_missing_rank < shard.worker_count());
  const uint32_t index = shard.index_of(chunk);
  if (shard.stragglers.is_open(index)) {
    const uint64_t first_ns = shard.stragglers.first_arrival_ns(index);
    status.waited_ms = static_cast<uint32_t>((context_.now_ns - first_ns) / kNanosPerMilli);
  }
  const uint64_t rounds = shard.rounds_finished.get();
  const uint64_t last = shard.sessions()[status.first_missing_rank].last_arrivals.get();
  status.last_percent = static_cast<uint16_t>(rounds == 0 ? 0 : 100 * last / rounds);
}

void Egress::answer(const JobShard& shard, Session& session, const wire::Header& asked,
                    const wire::StatusPayload& status) {
  PBOX_DCHECK(&shard.sessions()[session.rank] == &session);
  if (!session.reachable) return;  // it has pushed from an address that it has yet to prove
  const wire::Header header = status_header(shard, asked, sizeof(status));
  if (push_reply(session, header, status, path_to(session)))
    context_.counters.add(Counter::kStatusSent);
}

void Egress::answer_path_probe(const JobShard& shard, Session& session, const wire::Header& asked,
                               const nic::RxPacket& packet) {
  PBOX_DCHECK(wire::is_path_probe(asked) && asked.payload_bytes <= shard.fragment_bytes);
  push_reply(session, status_header(shard, asked, asked.payload_bytes), {},
             {packet.from, packet.to});
}

void Egress::send_challenge(const JobShard& shard, Session& session, const wire::Header& asked,
                            const nic::RxPacket& packet) {
  PBOX_DCHECK(session.challenge != 0 && packet.from == session.challenged);
  // A wire::Challenge is a STATUS that ends after its first field.
  static_assert(sizeof(wire::StatusPayload::received_mask) == sizeof(wire::Challenge));
  const wire::StatusPayload status{.received_mask = session.challenge};
  const wire::Header header = status_header(shard, asked, sizeof(wire::Challenge));
  if (push_reply(session, header, status, {packet.from, packet.to}))
    context_.counters.add(Counter::kAddressesChallenged);
}

void Egress::send_grants(JobShard& shard) {
  for (Session& session : shard.sessions()) {
    // A rank that is not reachable yet learns its credit from the reply to its JOIN.
    if (!session.present || !session.reachable) continue;
    wire::Header header;
    header.set_type(wire::PacketType::kGrant);
    header.epoch = shard.epoch;
    header.generation = shard.generation;
    push_reply(session, header, {}, path_to(session));
  }
}

Egress::Path Egress::path_to(const Session& session) {
  PBOX_DCHECK(session.reachable);
  return {session.endpoint, session.local_address};
}

bool Egress::push_reply(Session& session, const wire::Header& header,
                        const wire::StatusPayload& status, const Path& path) {
  if (reply_tail_ - reply_head_ >= kReplyCapacity) return false;
  PBOX_DCHECK(session.present);
  Reply& reply = replies_[reply_tail_++ % kReplyCapacity];
  PBOX_DCHECK(reply_tail_ > reply_head_);
  reply = {&session, header, status, path};
  reply.header.spi = session.spi | wire::kSpiToWorker;
  reply.header.credit = static_cast<uint16_t>(session.credit_bytes / limits::kCreditUnitBytes);
  return true;
}

}  // namespace pbox::pipeline
