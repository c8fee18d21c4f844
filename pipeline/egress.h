// The packets that a pipeline sends: replies, then results of tenants and jobs in turns
// (egress_turns.h). Within a job, results leave by priority, whatever part they belong to, and
// whether they are sent again, fanned out, or asked for by PULL. The pipeline's core calls
// everything here.
//
//   egress.cc          results, by job and priority
//   egress_replies.cc  STATUS and GRANT
//   egress_sync.cc     replies of relaxed shards
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "nic/port.h"
#include "nic/wire/zeros.h"
#include "pipeline/egress_turns.h"
#include "pipeline/engine_context.h"
#include "pipeline/flight_recording.h"

namespace pbox::pipeline {

class ResultMaker;

class Egress {
 public:
  // Both arguments outlive this.
  Egress(EngineContext& context, FlightRecording& flight);

  // Sends the shard's results from now on, until remove().
  void add(JobShard& shard) { turns_.add(shard); }
  // Also drops all packets that were made but not sent, and all queued replies, because they may
  // point into the shard's memory. They are few, and a worker whose packet is dropped asks again.
  void remove(JobShard& shard);

  // Returns the packets to hand to the port next, at most limits::kBurstPackets. The span stays the
  // same until sent(count) says how many of them the port took.
  std::span<const nic::TxPacket> to_send();
  void sent(size_t count);

  // Answers a PULL with a STATUS that says what the box has of the chunk.
  void send_status(const JobShard& shard, Session& session, Chunk& chunk,
                   const wire::Header& asked);
  // Answers a path probe with a STATUS of the same length, sent to the probe's source.
  void answer_path_probe(const JobShard& shard, Session& session, const wire::Header& asked,
                         const nic::RxPacket& packet);
  // Sends the session's challenge to the packet's source.
  void send_challenge(const JobShard& shard, Session& session, const wire::Header& asked,
                      const nic::RxPacket& packet);
  // Answers a packet with `status`.
  void answer(const JobShard& shard, Session& session, const wire::Header& asked,
              const wire::StatusPayload& status);
  // Tells every rank its credit.
  void send_grants(JobShard& shard);

  // Called when results of a relaxed shard have changed, so that packets that were made but not
  // sent must be made again.
  void note_results_changed() { results_changed_ = true; }
  // Drops packets that were made but not sent.
  void drop_unsent();
  // Allocates `room_` if it is not there yet. Called before a session that encrypts begins.
  void make_seal_room() { room_.make(); }
  // Allocates `rows_room_` if it is not there yet. Called before a job with tables begins.
  void make_rows_room() { rows_room_.make(); }

 private:
  struct Path {
    nic::Endpoint to;
    nic::LocalAddress from;
  };
  // A small packet with its payload and addresses. It is sealed when it leaves.
  struct Reply {
    Session* session = nullptr;
    wire::Header header;
    wire::StatusPayload status;
    Path path;
  };

  void add_from_ledger(const JobShard& shard, const Chunk& chunk,
                       wire::StatusPayload& status) const;
  static Path path_to(const Session& session);
  // Returns false if the queue of replies is full; the worker then asks again after a while.
  bool push_reply(Session& session, const wire::Header& header, const wire::StatusPayload& status,
                  const Path& path);
  // Fills outgoing_ from index `filled` on, and returns the new fill level.
  size_t fill_replies(size_t filled);
  // Each of these adds packets while there is room.
  void fill_job(const EgressJob& job, EgressRoom& room);
  void fill_resends(const EgressJob& job, EgressRoom& room);
  void resend(JobShard& shard, Answer& asked, EgressRoom& room);
  void fill_fan_out(JobShard& shard, EgressRoom& room);
  void fill_group(JobShard& shard, Session& session, EgressRoom& room);
  bool fill_copy(JobShard& shard, Session& session, const FanOut& at, EgressRoom& room);
  void make_zeros(const ResultMaker& maker, uint64_t fragments, uint8_t flags, EgressRoom& room);
  void fill_answer(JobShard& shard, EgressRoom& room);
  void fill_due_replies(JobShard& shard, EgressRoom& room);
  static bool begin_replies(JobShard& shard);
  uint32_t make_reply(const ResultMaker& maker, Chunk& chunk, uint32_t rank, uint32_t fragment,
                      uint8_t flags, size_t index);
  void fill_fragments(JobShard& shard, Answer& asked, uint8_t flags, EgressRoom& room);
  static bool begin_fan_out(JobShard& shard);
  // Put the rest of what is leaving back into the queue if something more urgent waits.
  static void give_way(EgressQueue& egress);
  static void give_way(JobShard& shard);
  void make_announcement(const JobShard& shard, Session& session, const FanOut& at, size_t index);
  void seal(Session& session, size_t index);
  // Makes again the packets that the port has not taken and whose chunks may have changed since.
  void refresh_unsent();
  bool remake(const JobShard& shard, Session& session, Chunk& chunk, size_t index);
  static void owe_rest(JobShard& shard, Chunk& chunk, const sync::ReplyProgress& reply);

  static constexpr size_t kReplyCapacity = 512;

  EngineContext& context_;
  FlightRecording& flight_;
  EgressTurns turns_;
  bool results_changed_ = false;  // since packets were made, in a relaxed shard

  std::vector<Reply> replies_;  // a ring of kReplyCapacity
  size_t reply_head_ = 0;
  size_t reply_tail_ = 0;

  std::array<nic::TxPacket, limits::kBurstPackets> outgoing_;
  std::array<wire::StatusPayload, limits::kBurstPackets> outgoing_status_;
  std::array<wire::ZerosPayload, limits::kBurstPackets> outgoing_zeros_;
  std::array<Path, limits::kBurstPackets> outgoing_paths_;
  seal::SealRoom room_;       // encrypted payloads, by index in outgoing_
  seal::SealRoom rows_room_;  // payloads by rows, because rows are not contiguous in the result
  size_t outgoing_begin_ = 0;
  size_t outgoing_end_ = 0;
};

}  // namespace pbox::pipeline
