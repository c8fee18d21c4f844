// Who is late, from the box's seat: of one job on one pipeline, kept while its chunks are summed.
// All-reduce cannot tell, since it makes everybody as slow as the slowest; a box sees each rank's
// push arrive.
//
// Times are those of the loop's turns: what arrives in one turn is equally late. A rank's push of a
// chunk arrives when its last fragment does. Of a round that is finished:
//   skew   from the first rank's arrival to the last one's
//   late   from the last arrival but one to the last: how much earlier the round would have been
//          done without the last rank
// Of a round that is open: the oldest that somebody has pushed, and who has not.
//
// Nothing here allocates, locks or asks the kernel once reserve() is done. The pipeline writes;
// what is said to be for any thread is read without locks, and may mix values of two neighbouring
// rounds.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/counter.h"
#include "pipeline/observe/duration_histogram.h"

namespace pbox::pipeline {

class StragglerLedger {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kRoundsKept = 64;

  // Of one arrival that ended a round.
  struct Lateness {
    uint64_t skew_ns = 0;
    uint64_t late_ns = 0;
  };

  // The last of a chunk that was later than any before it. Any thread.
  struct Worst {
    SingleWriterCounter late_ns;  // 0: nobody was late yet
    SingleWriterCounter round;
    SingleWriterCounter rank;
  };

  // One of the newest rounds, over all chunks of this pipeline. Any thread; void unless `round` is
  // the same before and after the others were read.
  struct Round {
    SingleWriterCounter round;  // and 1; 0: none
    SingleWriterCounter begun_ns, finished_ns;
    SingleWriterCounter chunks;   // that have finished it
    SingleWriterCounter late_ns;  // of the latest chunk
    SingleWriterCounter rank;     // that was the last there
    SingleWriterCounter chunk;    // index
  };

  // Chunks are known by their index in the shard. Control thread, before the pipeline has it.
  void reserve(size_t chunk_count);

  // A rank has pushed all of the chunk's open round, and another is still awaited.
  void arrived(uint32_t chunk, uint64_t now_ns);
  // A rank has pushed all of it, and was the last.
  Lateness finished(uint32_t chunk, uint64_t round, uint32_t rank, uint64_t now_ns);
  // The round ended another way: nobody is to blame.
  void ended(uint32_t chunk);

  // The chunk whose open round has been waited for the longest, kNone if there is none; and since
  // when. The pipeline's own core.
  uint32_t oldest() const { return head_; }
  bool is_open(uint32_t chunk) const { return chunks_[chunk].is_open; }
  uint64_t first_arrival_ns(uint32_t chunk) const { return chunks_[chunk].first_ns; }

  // Any thread.
  size_t chunk_count() const { return chunks_.size(); }
  const Worst& worst(uint32_t chunk) const { return chunks_[chunk].worst; }
  uint64_t late_ns(uint32_t chunk) const { return chunks_[chunk].late_ns.get(); }
  const std::array<Round, kRoundsKept>& rounds() const { return rounds_; }
  const DurationHistogram& skews() const { return skews_; }
  // From the first arrival of a round to its last, over all chunks of this pipeline; of rounds that
  // all of them have finished.
  const DurationHistogram& round_times() const { return round_times_; }

 private:
  // One cache line: all that an arrival touches.
  struct alignas(64) Chunk {
    uint64_t first_ns = 0;
    uint64_t newest_ns = 0;
    uint32_t next = kNone;
    uint32_t previous = kNone;
    bool is_open = false;  // linked: somebody has pushed its open round
    SingleWriterCounter late_ns;
    Worst worst;
  };

  void unlink(Chunk& chunk);
  void note_round(uint32_t chunk, uint64_t round, uint32_t rank, uint64_t late_ns, uint64_t now_ns);

  std::vector<Chunk> chunks_;
  // Open chunks, in the order of their first arrivals.
  uint32_t head_ = kNone;
  uint32_t tail_ = kNone;
  std::array<Round, kRoundsKept> rounds_;
  DurationHistogram skews_;
  DurationHistogram round_times_;
};

}  // namespace pbox::pipeline
