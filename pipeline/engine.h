// The protocol engine of one pipeline: packets in, packets out. It has no clock, socket or thread.
// The loop drives it over a real port, tests drive it over an in-process network. One core calls
// everything here, unless a declaration says otherwise.
//
// The steps of a packet: parse -> session -> tag -> message type -> chunk -> claim the fragment's
// bit -> add. Claiming and adding are one step. A packet that fails a check is counted and dropped,
// with no reply.
//
//   engine_receive.cc  a burst: authenticate, claim, add
//   engine_finish.cc   the end of a round (round_result.h makes its result)
//   engine_pull.cc     answers to PULL
//   engine_sync.cc     jobs with consistency models other than BSP
//   engine.cc          commands of the control thread, and the tick
//
// Some concerns have classes of their own: Egress (the packets that leave), ShapedPushes (pushes of
// collectives), TablePushes (pushes of tables), ZeroPushes (fragments that are zero) and
// FlightRecording (the flight recorder).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/entropy.h"
#include "nic/port.h"
#include "pipeline/command.h"
#include "pipeline/egress.h"
#include "pipeline/engine_context.h"
#include "pipeline/fetch_ahead.h"
#include "pipeline/flight_recording.h"
#include "pipeline/observe/phase_clock.h"
#include "pipeline/reduce/reduce.h"
#include "pipeline/shaped_pushes.h"
#include "pipeline/table_pushes.h"
#include "pipeline/zero_pushes.h"

namespace pbox::pipeline {

struct EngineOptions {
  uint32_t pipeline_index = 0;  // in [0, limits::kPipelinesMax), part of every spi of this pipeline
  wire::TagPolicy tag;
  // Memory that the flight recorder writes to, see FlightRing. Empty: nothing is recorded.
  std::span<std::byte> flight = {};
  Draws draw = system_entropy;  // draws challenges, which nobody but their receiver may know
};

// The bits of an spi that hold the pipeline's index. See wire::kSpiIndexMask and
// wire::kSpiToWorker for the other bits.
constexpr uint32_t kSpiPipelineShift = 13;
constexpr uint32_t spi_pipeline(uint32_t spi) {
  return (spi >> kSpiPipelineShift) & (limits::kPipelinesMax - 1);
}

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Phase "receive": takes every packet of a burst. Replies and finished chunks queue up inside.
  // `now_ns` is CLOCK_MONOTONIC at the start of the loop's turn, here and below.
  void on_burst(std::span<const nic::RxPacket> packets, uint64_t now_ns);

  // Phase "send": returns the packets to hand to the port next, at most limits::kBurstPackets. The
  // span stays the same until sent(count) says how many of them the port took.
  std::span<const nic::TxPacket> to_send() { return egress_.to_send(); }
  void sent(size_t count) { egress_.sent(count); }

  // Phase "housekeeping": carries out a command of the control thread, or a part of it that takes
  // less than about a millisecond. Returns true once the command is complete; until then the caller
  // passes it again, and no other command. While a command changes a shard's membership, all
  // packets of the shard are rejected as packets of another generation.
  bool step(Command& command);
  // Carries out the whole command.
  void execute(Command command) {
    while (!step(command)) {
    }
  }

  // Phase "housekeeping": publishes the results of the chunks that relays have given back. Finishes
  // some of the rounds that have their verdict now, or whose grace is over. Takes less than about a
  // millisecond. Returns true if there were any.
  bool finish_waiting(uint64_t now_ns) {
    return waiting_shards_ > 0 && finish_waiting_rounds(now_ns);
  }
  // Returns the time, on the clock of `now_ns`, by which finish_waiting() has to be called again.
  // UINT64_MAX: a packet or a command will come first.
  uint64_t due_ns() const { return due_ns_; }

  // Phase "housekeeping", every turn. Once per kTickNs it counts a tick, which shows that the loop
  // runs, and updates each session's keys and how long others have waited for its rank. It looks at
  // the oldest open round of each shard only, so its time does not grow with the number of chunks.
  void tick(uint64_t now_ns) {
    if (now_ns < next_tick_ns_) return;
    next_tick_ns_ = now_ns + kTickNs;
    take_tick(now_ns);
  }

  // Called before a turn if this thread did not run for `gap_ns` since the turn before. This time
  // counts neither as a rank's lateness nor as part of a round's grace.
  void discount_standstill(uint64_t gap_ns);

  // Any thread may read the counters.
  const Counters& counters() const { return context_.counters; }
  Counters& counters() { return context_.counters; }
  PhaseClock& clock() { return clock_; }

 private:
  // engine_receive.cc. The steps of a packet are inlined by force: as calls they cost a packet 15
  // cycles (`pbox-perf wire`).
  template <typename Ahead, bool kTraces>
  void on_packets(std::span<const nic::RxPacket> packets, uint64_t now_ns);
  [[gnu::always_inline]] inline void on_packet(const nic::RxPacket& packet, uint64_t now_ns);
  [[gnu::always_inline]] inline SessionEntry* authenticate(wire::Parsed& parsed);
  [[gnu::always_inline]] inline void note_sender(Session& session, const nic::RxPacket& packet,
                                                 const wire::Header& header, uint64_t now_ns);
  // Takes a PUSH or a STATE. A STATE gives back the result of a round that must not be summed
  // again, because some rank has consumed it.
  [[gnu::always_inline]] inline void on_push(JobShard& shard, Session& session,
                                             const wire::Parsed& parsed, uint64_t now_ns);
  bool on_formatted_push(JobShard& shard, Session& session, Chunk& chunk,
                         const wire::Parsed& parsed, uint64_t now_ns);
  [[gnu::always_inline]] inline bool claim(const JobShard& shard, Session& session, Chunk& chunk,
                                           const wire::Header& header, uint64_t fragments);
  [[gnu::always_inline]] inline void add_fragment(JobShard& shard, Session& session, Chunk& chunk,
                                                  const wire::Parsed& parsed);
  [[gnu::always_inline]] inline bool accumulate(JobShard& shard, Session& session, Chunk& chunk,
                                                const wire::Parsed& parsed);
  [[gnu::always_inline]] inline void finish_push(JobShard& shard, Session& session, Chunk& chunk);
  void add_late(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                const wire::RowsView* rows);
  void on_push_of_finished(JobShard& shard, Session& session, Chunk& chunk, uint64_t mask,
                           uint64_t now_ns);

  // engine_checks.h: checks that all consistency models share.
  [[gnu::always_inline]] inline Chunk* find_chunk(JobShard& shard, const wire::Header& header);
  [[gnu::always_inline]] inline Chunk* check_round(JobShard& shard, const wire::Header& header);
  [[gnu::always_inline]] inline bool check_fragment(const Chunk& chunk, const wire::Header& header);

  // engine_finish.cc
  void end_round(JobShard& shard, Chunk& chunk);
  void complete_round(JobShard& shard, Chunk& chunk);
  void finish_round(JobShard& shard, Chunk& chunk);
  void publish_result(JobShard& shard, Chunk& chunk);
  bool finish_waiting_rounds(uint64_t now_ns);
  size_t finish_if_complete(JobShard& shard, Chunk& chunk);

  // engine_pull.cc
  void on_pull(JobShard& shard, Session& session, const nic::RxPacket& packet,
               const wire::Parsed& parsed, uint64_t now_ns);
  // Returns whether a PULL from another address than the session's may be answered like any other.
  bool check_address(JobShard& shard, Session& session, const nic::RxPacket& packet,
                     const wire::Parsed& parsed);
  bool answer_pull(JobShard& shard, const Session& session, Chunk& chunk, const AskedResult& asked);
  bool request_resend(JobShard& shard, Session& session, Chunk& chunk, const AskedResult& asked,
                      uint64_t now_ns);

  // engine_sync.cc: relaxed shards.
  // Returns false if the push belongs to a round that all ranks share: on_push then takes it.
  bool on_sync_push(JobShard& shard, Session& session, const wire::Parsed& parsed);
  void on_sync_pull(JobShard& shard, Session& session, const wire::Parsed& parsed, uint64_t now_ns);
  // `rows`: the rows in the payload if the chunk belongs to a table; else null.
  void on_own_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                   const wire::RowsView* rows);
  void on_late_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed,
                    const wire::RowsView* rows);
  void apply(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  void complete_push(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void close_round(JobShard& shard, Chunk& chunk);
  void on_advance(JobShard& shard, Chunk& chunk);
  size_t change_rule(JobShard& shard, Chunk& chunk, const wire::SyncSpec& rule);
  void drop_rank(JobShard& shard, Chunk& chunk, uint32_t rank);
  bool answer_with_data(JobShard& shard, Session& session, Chunk& chunk, const wire::Header& asked,
                        uint64_t held_mask, uint64_t now_ns);

  // engine.cc
  bool begin(Command& command);
  bool walk(Command& command);
  void install(JobShard& shard);
  void remove(JobShard& shard);
  void connect(JobShard& shard, Session& session);
  bool admit(JobShard& shard, Command& command);
  bool exclude(JobShard& shard, const Command& command);
  size_t change_membership(JobShard& shard, Chunk& chunk, const Command& command);
  void take_tick(uint64_t now_ns);

  static constexpr uint64_t kTickNs = 50'000'000;
  // A step looks at this many chunks, or finishes rounds of kElementsPerChunk times as many
  // elements, or does a mix of the two. It takes about half a millisecond.
  static constexpr uint32_t kChunksPerStep = 8192;
  static constexpr size_t kElementsPerChunk = 64;

  const reduce::Kernels& kernels_;
  uint32_t pipeline_index_;
  Draws draw_;
  EngineContext context_;
  FlightRecording flight_;
  Egress egress_;
  PhaseClock clock_{context_.counters};
  ShapedPushes shaped_{context_, flight_, kernels_};
  TablePushes tables_{context_, kernels_};
  ZeroPushes zeros_{context_, kernels_};
  FetchChoice fetch_choice_;
  seal::OpenRoom opened_;
  uint64_t aggregated_ = 0;  // fragments of this burst, added to the counters once per burst
  uint64_t aggregated_bytes_ = 0;
  uint64_t next_tick_ns_ = 0;
  bool tracing_ = false;  // some shard has a trace
  // Shards whose rounds may wait for a relay, a verdict or the end of their grace.
  size_t waiting_shards_ = 0;
  uint64_t due_ns_ = UINT64_MAX;  // when the next grace ends

  // The packet after the one whose payload is being summed in pieces. Null where payloads are
  // summed whole.
  const nic::RxPacket* following_ = nullptr;
};

}  // namespace pbox::pipeline
