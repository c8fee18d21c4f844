// The protocol core of one pipeline: packets in, packets out, no clock, no socket, no thread. The
// loop drives it over a real port, tests over an in-process network. Everything here runs on one
// core.
//
// A packet's way: parse -> session -> tag -> message type -> chunk -> claim the fragment's bit ->
// add. Claim and add are one step. Whatever fails a check is counted and dropped, with no reply.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

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
  uint32_t pipeline_index = 0;  // [0, limits::kPipelinesMax), part of every spi of this pipeline
  wire::TagPolicy tag;
  // Where the flight recorder writes: see FlightRing. Empty: it keeps nothing.
  std::span<std::byte> flight = {};
};

// The pipeline's part of an spi; see wire::kSpiIndexMask and wire::kSpiToWorker for the others.
constexpr uint32_t kSpiPipelineShift = 13;
constexpr uint32_t spi_pipeline(uint32_t spi) {
  return (spi >> kSpiPipelineShift) & (limits::kPipelinesMax - 1);
}

// Verdicts that are told by a counter which moved: all but "aggregated".
inline constexpr size_t kCountedVerdicts = 18;

class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  // Phase "receive": every packet of a burst. Replies and finished chunks queue up inside.
  void on_burst(std::span<const nic::RxPacket> packets, uint64_t now_ns);

  // Phase "send": the packets to hand to the port next; at most limits::kBurstPackets. The span
  // stays the same until sent(count) says how many the port took.
  std::span<const nic::TxPacket> to_send();
  void sent(size_t count);

  // Phase "housekeeping": carries out one command of the control thread.
  void execute(const Command& command);

  // The same phase: what relays have given back is given out as results. True if there was any.
  bool take_returned(uint64_t now_ns) { return relayed_shards_ > 0 && finish_returned(now_ns); }

  // The same phase, every turn: at times a sign of life, and in each session whether the others
  // wait for it. Sees the oldest open round of each job, so that it takes no longer for large ones.
  void tick(uint64_t now_ns) {
    if (now_ns < next_tick_ns_) return;
    next_tick_ns_ = now_ns + kTickNs;
    take_tick(now_ns);
  }

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

  template <typename Ahead, bool kTraces>
  void on_packets(std::span<const nic::RxPacket> packets, uint64_t now_ns);
  // A packet's way. Inlined by force: the calls cost it 15 cycles (`pbox-perf wire`).
  [[gnu::always_inline]] inline void on_packet(const nic::RxPacket& packet, uint64_t now_ns);
  [[gnu::always_inline]] inline SessionEntry* authenticate(const wire::Parsed& parsed);
  [[gnu::always_inline]] inline void note_sender(Session& session, const nic::RxPacket& packet,
                                                 const wire::Header& header, uint64_t now_ns);
  [[gnu::always_inline]] inline Chunk* find_chunk(JobShard& shard, const wire::Header& header);
  [[gnu::always_inline]] inline bool check_fragment(const JobShard& shard, const Chunk& chunk,
                                                    const wire::Header& header);
  [[gnu::always_inline]] inline Chunk* check_chunk(JobShard& shard, const wire::Header& header);
  // PUSH, and STATE: what a rank consumed in a round that must be finished by copying.
  [[gnu::always_inline]] inline void on_push(JobShard& shard, Session& session,
                                             const wire::Parsed& parsed, uint64_t now_ns);
  [[gnu::always_inline]] inline void absorb(JobShard& shard, Session& session, Chunk& chunk,
                                            const wire::Parsed& parsed);
  // on_push where it costs nobody else anything: of jobs whose model is not BSP.
  void push_into_slot(JobShard& shard, Session& session, const wire::Parsed& parsed,
                      uint64_t now_ns);
  void on_pull(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  // The fragment has an infinity or a NaN in it.
  void note_nonfinite(Session& session, uint32_t chunk, uint32_t round);
  // The session's push ends the chunk's round: for the straggler ledger.
  void note_last(JobShard& shard, Session& session, const Chunk& chunk);
  void end_round(JobShard& shard, Chunk& chunk);
  void add_in_order(JobShard& shard, Chunk& chunk);
  void finish_round(JobShard& shard, Chunk& chunk);
  void make_result(JobShard& shard, Chunk& chunk);
  void give_out(JobShard& shard, Chunk& chunk);
  bool finish_returned(uint64_t now_ns);
  void run_optimizer(JobShard& shard, Chunk& chunk, bool scaled);
  // True if it has divided the sum already.
  static bool count_contributors(JobShard& shard, Chunk& chunk);
  bool answer_pull(JobShard& shard, const Session& session, Chunk& chunk, uint64_t mask);
  bool request_resend(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                      uint64_t now_ns);
  // False, and counted, if the session has had its share.
  bool may_resend(Session& session, uint64_t now_ns);

  // engine_sync.cc: jobs whose consistency model is not BSP.
  void on_sync_push(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  void on_sync_pull(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  void on_late_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  void complete_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void close_round(JobShard& shard, Chunk& chunk);
  void on_advance(JobShard& shard, Chunk& chunk);
  void leave(JobShard& shard, uint32_t rank);
  bool answer_with_data(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& asked,
                        uint64_t held_mask, uint64_t now_ns);
  void park(JobShard& shard, Chunk& chunk, uint32_t rank);
  void unpark(JobShard& shard, Chunk& chunk, uint32_t rank);
  void owe(JobShard& shard, Chunk& chunk, uint32_t rank);

  void send_status(const JobShard& shard, Session& session, const Chunk& chunk,
                   const wire::Header& asked);
  void add_from_ledger(const JobShard& shard, const Chunk& chunk,
                       wire::StatusPayload& status) const;
  // The same for a rank of a job whose pushes are applied as they come.
  void send_progress(const JobShard& shard, Session& session, const Chunk& chunk,
                     const wire::Header& asked);
  void answer(const JobShard& shard, Session& session, const wire::Header& asked,
              const wire::StatusPayload& status);
  void send_grants(JobShard& shard);
  bool push_reply(Session& session, const wire::Header& header, const wire::StatusPayload& status);
  void carry_out(const Command& command);
  void install(JobShard& shard);
  void remove(JobShard& shard);
  void connect(JobShard& shard, Session& session);
  void admit(JobShard& shard, const Command& command);
  void exclude(JobShard& shard, const Command& command);
  void finish_complete_rounds(JobShard& shard);

  size_t fill_replies(size_t filled);
  size_t fill_shard(JobShard& shard, size_t filled, size_t limit);
  size_t fill_fan_out(JobShard& shard, size_t filled, size_t limit);
  size_t fill_group(JobShard& shard, Session& session, size_t filled, size_t limit);
  static bool begin_fan_out(EgressQueue& egress);
  void make_announcement(const JobShard& shard, Session& session, const FanOut& at, size_t index);
  size_t fill_resends(JobShard& shard, size_t filled, size_t limit);
  size_t fill_owed(JobShard& shard, size_t filled, size_t limit);
  // Packets made, but not taken by the port, of chunks that may have changed since.
  void remake_unsent();
  size_t fill_answers(JobShard& shard, size_t filled, size_t limit);
  size_t fill_asked(JobShard& shard, Resend& asked, uint8_t flags, size_t filled, size_t limit);

  // engine_trace.cc: a trace of rounds, while somebody has asked for one.
  struct TracedPush {
    JobShard* shard = nullptr;  // null: of nothing that is traced
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

  // engine_flight.cc: what the flight recorder is told beside the packets.
  void note_verdict(FlightRecord& record, const nic::RxPacket& packet);
  void record_command(const Command& command);
  void record_shard(const JobShard& shard);
  void record_chunk(const JobShard& shard, const Chunk& chunk, bool opens);
  void record_left(const JobShard& shard, const FanOut& at);
  void record_state();

  void take_tick(uint64_t now_ns);
  static void note_awaited(JobShard& shard, uint64_t now_ns);

  static constexpr size_t kReplyCapacity = 512;
  static constexpr uint64_t kTickNs = 50'000'000;

  EngineOptions options_;
  const reduce::Kernels& kernels_;
  Counters counters_;
  PhaseClock clock_{counters_};
  FetchChoice fetch_choice_;
  uint64_t aggregated_ = 0;  // of the burst at hand; into the counters once per burst
  uint64_t aggregated_bytes_ = 0;
  uint64_t now_ns_ = 0;  // of the last burst or tick
  uint64_t next_tick_ns_ = 0;
  bool tracing_ = false;                // some shard has a trace
  bool results_changed_ = false;        // since packets were made: of jobs other than BSP
  std::vector<SessionEntry> sessions_;  // by spi_index
  std::vector<JobShard*> shards_;
  size_t next_shard_ = 0;      // whose turn it is to send
  size_t relayed_shards_ = 0;  // that have an uplink

  // While a burst of large packets is summed: the packet after the one at hand, whose payload is
  // summed in pieces. Else nullptr.
  const nic::RxPacket* following_ = nullptr;

  FlightRing flight_;
  std::array<uint64_t, kCountedVerdicts> judged_{};  // what verdicts count, as of the last of them
  uint64_t next_state_ = 0;  // records after which a part of the state is recorded again
  size_t state_shard_ = 0;   // whose turn that is
  size_t state_chunk_ = 0;
  uint32_t flight_numbers_ = 0;  // of shards

  std::vector<Reply> replies_;
  size_t reply_head_ = 0;
  size_t reply_tail_ = 0;

  std::array<nic::TxPacket, limits::kBurstPackets> outgoing_;
  std::array<wire::StatusPayload, limits::kBurstPackets> outgoing_status_;
  size_t outgoing_begin_ = 0;
  size_t outgoing_end_ = 0;
};

}  // namespace pbox::pipeline
