// The records of a pipeline's engine in its flight recorder: packets with their verdicts, commands,
// rounds that open, results that have left, and from time to time the state itself, so that any
// full ring can be replayed from a known state. The pipeline's core calls everything here.
#pragma once

#include <array>
#include <cstdint>

#include "pipeline/command.h"
#include "pipeline/engine_context.h"
#include "pipeline/observe/flight_ring.h"

namespace pbox::pipeline {

class FlightRecording {
 public:
  // Number of verdicts that are inferred from counters: all except "pending" and "aggregated".
  static constexpr size_t kCountedVerdicts = 19;

  // Anybody can send packets that are rejected before their tag proves their origin. At most one
  // record in this many is kept for such junk. Metrics count all of it.
  static constexpr uint64_t kJunkShare = 16;

  // `memory`: as for FlightRing. If it is empty, nothing is recorded. `context` outlives this.
  FlightRecording(std::span<std::byte> memory, const EngineContext& context);

  // Records a packet before anything is done with it. The caller sets its verdict later.
  [[gnu::always_inline]] inline FlightRecord& add_packet(const nic::RxPacket& packet,
                                                         uint64_t now_ns) {
    return ring_.add_packet(packet, now_ns);
  }
  // Sets the verdict of a packet that was not added, from the counter that has moved since the last
  // call. `record` is the newest record. If the packet is junk, the next record may replace it.
  void note_verdict(FlightRecord& record);
  // Stores `mask`, which the payload of the packet with the newest record begins with. The payload
  // of the packet itself may be encrypted.
  void note_mask(uint64_t mask);
  void record_command(const Command& command);
  // Records the state of a chunk. `opens`: its open round gets its first fragment now.
  void record_chunk(const JobShard& shard, const Chunk& chunk, bool opens);
  // Records that a result has left for the last rank.
  void record_left(const JobShard& shard, const FanOut& at);
  // Called once per burst: records a piece of the state if enough was recorded since the last one.
  void keep_state() {
    if (ring_.written() >= next_state_) [[unlikely]]
      record_state();
  }

  // Returns an id for a shard in this recorder, from 1.
  uint32_t next_shard_number() { return ++shard_numbers_; }

 private:
  void limit_junk();
  void record_shard(const JobShard& shard);
  void record_sessions(const JobShard& shard);
  void record_state();

  const EngineContext& context_;
  FlightRing ring_;
  std::array<uint64_t, kCountedVerdicts> verdict_counts_{};  // counters as of the last verdict
  uint64_t junk_allowed_;       // records that may still be kept for junk
  uint64_t junk_counted_ = 0;   // number of records that junk_allowed_ has been raised for
  uint64_t next_state_ = 0;     // number of records after which more of the state is recorded
  size_t state_shard_ = 0;      // shard whose state is recorded next
  size_t state_chunk_ = 0;      // chunk of that shard that is recorded next
  uint32_t shard_numbers_ = 0;  // shards numbered so far
};

}  // namespace pbox::pipeline
