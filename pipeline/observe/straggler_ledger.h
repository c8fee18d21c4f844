// The ranks that are late, as seen by the box: for one job on one pipeline, updated while its
// chunks are summed. All-reduce cannot tell which rank is late, because it makes every rank as slow
// as the slowest. A box sees each rank's push arrive.
//
// Times are those of the loop's turns, so pushes of one turn are equally late. A rank's push of a
// chunk arrives with its last fragment. For a finished round the ledger knows:
//   skew   the time from the first rank's arrival to the last rank's
//   late   the time from the last arrival but one to the last: how much earlier the round would
//          have finished without the last rank
// For open rounds it knows the oldest one that some rank has pushed.
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

  // The latest arrival of a chunk so far. Any thread.
  struct Worst {
    SingleWriterCounter late_ns;  // 0: no rank was late yet
    SingleWriterCounter round;
    SingleWriterCounter rank;
  };

  // One of the newest rounds, over all chunks of this pipeline. Any thread. A reader reads `round`
  // before and after the other fields, and discards them if it has changed.
  struct Round {
    SingleWriterCounter round;  // the round's number plus 1; 0: unused
    SingleWriterCounter begun_ns, finished_ns;
    SingleWriterCounter chunks;   // chunks that have finished the round
    SingleWriterCounter late_ns;  // lateness of its latest chunk
    SingleWriterCounter rank;     // rank that was last in that chunk
    SingleWriterCounter chunk;    // index of that chunk
  };

  // Chunks are identified by their index in the shard. Control thread, before the shard is
  // installed.
  void reserve(size_t chunk_count);
  // Returns the bytes that reserve() takes. Any thread.
  static constexpr size_t reserved_bytes(size_t chunk_count) { return chunk_count * sizeof(Chunk); }

  // A rank has pushed all of the chunk's open round, and others are still missing.
  void arrived(uint32_t chunk, uint64_t now_ns);
  // The last missing rank has pushed all of it.
  Lateness finished(uint32_t chunk, uint64_t round, uint32_t rank, uint64_t now_ns);
  // The box did not run for `gap_ns` until now: open rounds have waited that much less for a rank.
  void discount(uint64_t gap_ns);
  // The round ended in another way, and no rank was late.
  void ended(uint32_t chunk);

  // The chunk whose open round has waited the longest; kNone if no open round has been pushed by
  // any rank. The pipeline's own core.
  uint32_t oldest() const { return open_.head(); }
  bool is_open(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].is_open;
  }
  // When the first rank pushed all of the chunk's open round.
  uint64_t first_arrival_ns(uint32_t chunk) const {
    PBOX_DCHECK(chunk < chunks_.size());
    return chunks_[chunk].first_ns;
  }

  // Any thread.
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
  // Times from the first arrival of a round to its last, over all chunks of this pipeline. Only
  // rounds that all chunks have finished count.
  const DurationHistogram& round_times() const { return round_times_; }

 private:
  // All that an arrival touches, in one cache line.
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
