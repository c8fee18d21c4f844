// The protocol engine of one pipeline: packets in, packets out. It has no clock, socket or thread.
// The loop drives it over a real port, tests drive it over an in-process network. One core calls
// everything here, unless a declaration says otherwise.
//
// A packet's way: parse -> session -> tag -> message type -> chunk -> claim the fragment's bit ->
// add. Claiming and adding are one step. A packet that fails a check is counted and dropped, with
// no reply.
//
//   engine_receive.cc  a burst: authenticate, claim, add
//   engine_finish.cc   a round that all ranks have pushed: optimizer, conversion, publication
//   engine_pull.cc     answers to PULL, and the bound on resends
//   engine_send.cc     the packets that leave, by job and priority
//   engine_sync.cc     consistency models other than BSP
//   engine.cc          commands of the control thread, and the tick
//   engine_flight.cc   the flight recorder
//   engine_trace.cc    traces of rounds
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "nic/port.h"
#include "pipeline/command.h"
#include "pipeline/fetch_ahead.h"
#include "pipeline/job_shard.h"
#include "pipeline/observe/counters.h"
#include "pipeline/observe/flight_ring.h"
#include "pipeline/observe/phase_clock.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

struct EngineOptions {
  uint32_t pipeline_index = 0;  // in [0, limits::kPipelinesMax), part of every spi of this pipeline
  wire::TagPolicy tag;
  // Memory that the flight recorder writes to, see FlightRing. Empty: nothing is recorded.
  std::span<std::byte> flight = {};
};

// The bits of an spi that hold the pipeline's index. See wire::kSpiIndexMask and
// wire::kSpiToWorker for the other bits.
constexpr uint32_t kSpiPipelineShift = 13;
constexpr uint32_t spi_pipeline(uint32_t spi) {
  return (spi >> kSpiPipelineShift) & (limits::kPipelinesMax - 1);
}

// Verdicts that the flight recorder infers from a counter that moved: all but "aggregated".
inline constexpr size_t kCountedVerdicts = 18;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  // Phase "receive": takes every packet of a burst. Replies and finished chunks queue up inside.
  // `now_ns` is CLOCK_MONOTONIC at the start of the loop's turn, here and below.
  void on_burst(std::span<const nic::RxPacket> packets, uint64_t now_ns);

  // Phase "send": returns the packets to hand to the port next, at most limits::kBurstPackets. The
  // span stays the same until sent(count) says how many of them the port took.
  std::span<const nic::TxPacket> to_send();
  void sent(size_t count);

  // Phase "housekeeping": carries out one command of the control thread.
  void execute(const Command& command);

  // Phase "housekeeping": publishes the results of the chunks that relays have given back. Returns
  // true if there were any.
  bool publish_returned(uint64_t now_ns) {
    return relayed_shards_ > 0 && publish_returned_chunks(now_ns);
  }

  // Phase "housekeeping", every turn. Every kTickNs it counts a sign of life and updates, in each
  // session, how long the other ranks have waited for it. It looks at the oldest open round of each
  // job only, so its time does not grow with a job's size.
  void tick(uint64_t now_ns) {
    if (now_ns < next_tick_ns_) return;
    next_tick_ns_ = now_ns + kTickNs;
    take_tick(now_ns);
  }

  // Any thread may read the counters.
  const Counters& counters() const { return counters_; }
  Counters& counters() { return counters_; }
  PhaseClock& clock() { return clock_; }

 private:
  struct SessionEntry {
    uint32_t spi = 0;
    JobShard* shard = nullptr;
    Session* session = nullptr;
  };
  // A small packet whose payload lives beside it until it is sent.
  struct Reply {
    nic::TxPacket packet;
    wire::StatusPayload status;
  };

  // engine_receive.cc. The steps of a packet are inlined by force: as calls they cost a packet 15
  // cycles (`pbox-perf wire`).
  template <typename Ahead, bool kTraces>
  void on_packets(std::span<const nic::RxPacket> packets, uint64_t now_ns);
  [[gnu::always_inline]] inline void on_packet(const nic::RxPacket& packet, uint64_t now_ns);
  [[gnu::always_inline]] inline SessionEntry* authenticate(const wire::Parsed& parsed);
  [[gnu::always_inline]] inline void note_sender(Session& session, const nic::RxPacket& packet,
                                                 const wire::Header& header, uint64_t now_ns);
  // PUSH, and STATE: the result that a rank consumed of a round that must not be summed again.
  [[gnu::always_inline]] inline void on_push(JobShard& shard, Session& session,
                                             const wire::Parsed& parsed, uint64_t now_ns);
  [[gnu::always_inline]] inline bool claim_fragment(const JobShard& shard, Session& session,
                                                    Chunk& chunk, const wire::Header& header);
  [[gnu::always_inline]] inline void add_fragment(JobShard& shard, Session& session, Chunk& chunk,
                                                  const wire::Parsed& parsed);
  [[gnu::always_inline]] inline bool accumulate(JobShard& shard, const Session& session,
                                                Chunk& chunk, const wire::Parsed& parsed);
  [[gnu::always_inline]] inline void finish_push(JobShard& shard, Session& session, Chunk& chunk);
  void on_push_of_finished(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                           uint64_t now_ns);
  void count_duplicate(Session& session);
  // Counts a fragment that contains an infinity or a NaN.
  void note_nonfinite(Session& session, uint32_t chunk, uint32_t round);

  // engine_checks.h: checks that every consistency model shares.
  [[gnu::always_inline]] inline Chunk* find_chunk(JobShard& shard, const wire::Header& header);
  [[gnu::always_inline]] inline Chunk* check_round(JobShard& shard, const wire::Header& header);
  [[gnu::always_inline]] inline bool check_fragment(const JobShard& shard, const Chunk& chunk,
                                                    const wire::Header& header);

  // engine_finish.cc
  // The session's push completes the chunk's round: updates the straggler ledger.
  void note_last(JobShard& shard, Session& session, const Chunk& chunk);
  void end_round(JobShard& shard, Chunk& chunk);
  void add_in_order(JobShard& shard, Chunk& chunk);
  void finish_round(JobShard& shard, Chunk& chunk);
  void make_result(JobShard& shard, Chunk& chunk);
  void make_weights(JobShard& shard, Chunk& chunk, bool is_averaged);
  void make_sum(JobShard& shard, Chunk& chunk, bool is_averaged);
  void run_optimizer(JobShard& shard, Chunk& chunk, bool is_averaged);
  void publish_result(JobShard& shard, Chunk& chunk);
  bool publish_returned_chunks(uint64_t now_ns);
  // Returns true if it has divided the sum, so that nothing is left to average.
  static bool count_contributors(JobShard& shard, Chunk& chunk);
  static void average_by_contributors(const JobShard& shard, Chunk& chunk);
  void finish_complete_rounds(JobShard& shard);

  // engine_pull.cc
  void on_pull(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  bool answer_pull(JobShard& shard, const Session& session, Chunk& chunk, uint64_t mask);
  bool request_resend(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                      uint64_t now_ns);
  // Returns false, and counts a refusal, if the session has used up its resend budget.
  bool has_resend_budget(Session& session, uint64_t now_ns);
  static void charge_resend(const JobShard& shard, Session& session, uint64_t mask);

  // engine_sync.cc: jobs whose consistency model is not BSP.
  // Returns false if the push belongs to a round that all ranks share: on_push then takes it.
  bool on_sync_push(JobShard& shard, Session& session, const wire::Parsed& parsed);
  void on_sync_pull(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  void on_own_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  void on_late_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  void complete_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void close_round(JobShard& shard, Chunk& chunk);
  void on_advance(JobShard& shard, Chunk& chunk);
  void drop_rank(JobShard& shard, uint32_t rank);
  bool answer_with_data(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& asked,
                        uint64_t held_mask, uint64_t now_ns);
  // True if the rank must wait for the data it asks for; its read is parked then.
  bool park_cached_read(JobShard& shard, const Session& session, Chunk& chunk);
  void park(JobShard& shard, Chunk& chunk, uint32_t rank);
  void unpark(JobShard& shard, Chunk& chunk, uint32_t rank);
  void queue_reply(JobShard& shard, Chunk& chunk, uint32_t rank);
  // STATUS for a rank of a job whose pushes are applied on arrival.
  void send_progress(const JobShard& shard, Session& session, const Chunk& chunk,
                     const wire::Header& asked);

  // engine_send.cc
  void send_status(const JobShard& shard, Session& session, const Chunk& chunk,
                   const wire::Header& asked);
  void add_from_ledger(const JobShard& shard, const Chunk& chunk,
                       wire::StatusPayload& status) const;
  void answer(const JobShard& shard, Session& session, const wire::Header& asked,
              const wire::StatusPayload& status);
  void send_grants(JobShard& shard);
  // Returns false if the queue of replies is full; the worker's timer asks again.
  bool push_reply(Session& session, const wire::Header& header, const wire::StatusPayload& status);
  // Each fills outgoing_ from index `filled` to at most `limit`, and returns the new fill level.
  size_t fill_replies(size_t filled);
  size_t fill_shard(JobShard& shard, size_t filled, size_t limit);
  size_t fill_fan_out(JobShard& shard, size_t filled, size_t limit);
  size_t fill_group(JobShard& shard, Session& session, size_t filled, size_t limit);
  size_t fill_resends(JobShard& shard, size_t filled, size_t limit);
  size_t fill_answers(JobShard& shard, size_t filled, size_t limit);
  size_t fill_due_replies(JobShard& shard, size_t filled, size_t limit);
  size_t fill_fragments(JobShard& shard, Resend& asked, uint8_t flags, size_t filled, size_t limit);
  static bool begin_fan_out(EgressQueue& egress);
  void make_announcement(const JobShard& shard, Session& session, const FanOut& at, size_t index);
  // Makes again the packets that the port has not taken and whose chunks may have changed since.
  void refresh_unsent();

  // engine.cc
  void carry_out(const Command& command);
  void install(JobShard& shard);
  void remove(JobShard& shard);
  void connect(JobShard& shard, Session& session);
  void admit(JobShard& shard, const Command& command);
  void exclude(JobShard& shard, const Command& command);
  void take_tick(uint64_t now_ns);
  static void note_awaited(JobShard& shard, uint64_t now_ns);

  // engine_trace.cc
  struct TracedPush {
    JobShard* shard = nullptr;  // null: the packet belongs to no job that is traced
    const Chunk* chunk = nullptr;
    uint32_t rank = 0;
    uint64_t claimed = 0;
    uint64_t rounds_finished = 0;
    uint64_t at_ns = 0;
  };
  void set_trace(JobShard& shard, RoundTrace* trace);
  void note_tracing();
  void end_traces(uint64_t now_ns);
  TracedPush before_push(const nic::RxPacket& packet);
  static void after_push(const TracedPush& before);
  static void trace_round(const JobShard& shard, const Chunk& chunk, uint32_t round,
                          TraceEvent::Kind kind);

  // engine_flight.cc: records other than packets.
  void note_verdict(FlightRecord& record, const nic::RxPacket& packet);
  void record_command(const Command& command);
  void record_shard(const JobShard& shard);
  void record_sessions(const JobShard& shard);
  void record_chunk(const JobShard& shard, const Chunk& chunk, bool opens);
  void record_left(const JobShard& shard, const FanOut& at);
  void record_state();

  static constexpr size_t kReplyCapacity = 512;
  static constexpr uint64_t kTickNs = 50'000'000;

  EngineOptions options_;
  const reduce::Kernels& kernels_;
  Counters counters_;
  PhaseClock clock_{counters_};
  FetchChoice fetch_choice_;
  uint64_t aggregated_ = 0;  // fragments of this burst, added to the counters once per burst
  uint64_t aggregated_bytes_ = 0;
  uint64_t now_ns_ = 0;  // time of the last burst or tick
  uint64_t next_tick_ns_ = 0;
  bool tracing_ = false;                // some shard has a trace
  bool results_changed_ = false;        // since packets were made, in a job whose model is not BSP
  std::vector<SessionEntry> sessions_;  // by spi_index
  std::vector<JobShard*> shards_;
  size_t next_shard_ = 0;      // the shard whose turn it is to send
  size_t relayed_shards_ = 0;  // shards that have an uplink

  // The packet after the one whose payload is being summed in pieces. Null where payloads are
  // summed whole.
  const nic::RxPacket* following_ = nullptr;

  FlightRing flight_;
  std::array<uint64_t, kCountedVerdicts> verdict_counts_{};  // counters as of the last verdict
  uint64_t next_state_ = 0;      // number of records after which more of the state is recorded
  size_t state_shard_ = 0;       // shard whose state is recorded next
  size_t state_chunk_ = 0;       // chunk of it that is recorded next
  uint32_t flight_numbers_ = 0;  // shards numbered so far

  std::vector<Reply> replies_;  // a ring of kReplyCapacity
  size_t reply_head_ = 0;
  size_t reply_tail_ = 0;

  std::array<nic::TxPacket, limits::kBurstPackets> outgoing_;
  std::array<wire::StatusPayload, limits::kBurstPackets> outgoing_status_;
  size_t outgoing_begin_ = 0;
  size_t outgoing_end_ = 0;
};

}  // namespace pbox::pipeline
