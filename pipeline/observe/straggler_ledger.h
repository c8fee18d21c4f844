// Which ranks of a job are late, as seen by one pipeline of the box. It is updated while the job's
// chunks are summed. All-reduce cannot tell which rank is late, because it makes every rank as slow
// as the slowest. A box sees each rank's push arrive.
//
// All events of one turn of the loop have the same time. A rank's push of a chunk arrives when its
// last fragment does. For a finished round the ledger knows:
//   skew   the time from the first rank's arrival to the last rank's
//   late   the time from the last arrival but one to the last: how much earlier the round would
//          have finished without the last rank
// Among open rounds it knows the oldest one that some rank has pushed.
//
// Nothing here allocates, locks or calls the kernel once reserve() is done. The pipeline writes.
// Members marked "any thread" are read without locks, and may mix values of two successive rounds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/counter.h"
#include "base/index_list.h"
#include "pipeline/observe/duration_histogram.h"

namespace pbox::pipeline {

class StragglerLedger {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kRoundsKept = 64;

  // The lateness of the arrival that ended a round.
  struct Lateness {
    uint64_t skew_ns = 0;
    uint64_t late_ns = 0;
  };

  // The arrival of a chunk that was the latest of all rounds so far. Any thread may read it.
  struct Worst {
    SingleWriterCounter late_ns;  // 0: no rank was late yet
    SingleWriterCounter round;
    SingleWriterCounter rank;
  };

  // One of the newest rounds, over all chunks of this pipeline. Any thread may read it. It must
  // read `round` before and after the other fields, and discard them if `round` has changed.
  struct Round {
    SingleWriterCounter round;  // the round's number plus 1; 0: unused
    SingleWriterCounter begun_ns, finished_ns;
    SingleWriterCounter chunks;   // chunks that have finished the round
    SingleWriterCounter late_ns;  // lateness of its latest chunk
    SingleWriterCounter rank;     // rank that was last in its latest chunk
    SingleWriterCounter chunk;    // index of the latest chunk
  };

  // Chunks are identified by their index in the shard. Called by the control thread before the
  // shard is installed.
  void reserve(size_t chunk_count);
  // Returns the bytes that reserve() takes. Any thread.
  static constexpr size_t reserved_bytes(size_t chunk_count) { return chunk_count * sizeof(Chunk); }

  // Called when a rank has pushed all of the chunk's open round, and others are still missing.
  void arrived(uint32_t chunk, uint64_t now_ns);
  // Called when the last missing rank has pushed all of the chunk's open round.
  Lateness finished(uint32_t chunk, uint64_t round, uint32_t rank, uint64_t now_ns);
  // Called when the box did not run for `gap_ns`: open rounds have not waited for a rank meanwhile.
  void discount(uint64_t gap_ns);
  // Called when the round ended in another way, so that no rank was late.
  void ended(uint32_t chunk);

  // Returns the chunk whose open round has waited the longest; kNone if no rank has pushed an open
  // round. The pipeline's own core calls it.
  uint32_t oldest() const { return open_.head(); }
  bool is_open(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].is_open;
  }
  // Returns when the first rank pushed all of the chunk's open round; valid if is_open().
  uint64_t first_arrival_ns(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].first_ns;
  }

  // Any thread may call the following functions.
  size_t chunk_count() const { return chunks_.size(); }
  const Worst& worst(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].worst;
  }
  uint64_t late_ns(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].late_ns.get();
  }
  const std::array<Round, kRoundsKept>& rounds() const { return rounds_; }
  const DurationHistogram& skews() const { return skews_; }
  // Returns the times from the first arrival of a round to its last, over all chunks of this
  // pipeline. Only rounds that all chunks have finished count.
  const DurationHistogram& round_times() const { return round_times_; }

 private:
  // Everything that an arrival touches, in one cache line.
  struct alignas(64) Chunk {
    uint64_t first_ns = 0;
    uint64_t newest_ns = 0;
    uint32_t next = kNone;
    uint32_t previous = kNone;
    bool is_open = false;  // in the list: some rank has pushed all of its open round
    SingleWriterCounter late_ns;
    Worst worst;
  };

  void note_round(uint32_t chunk, uint64_t round, uint32_t rank, uint64_t late_ns, uint64_t now_ns);

  std::vector<Chunk> chunks_;
  IndexList<Chunk> open_;  // in the order of their first arrivals
  std::array<Round, kRoundsKept> rounds_;
  DurationHistogram skews_;
  DurationHistogram round_times_;
};

}  // namespace pbox::pipeline
