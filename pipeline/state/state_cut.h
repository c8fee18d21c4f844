// A snapshot's copy of a shard in mode optimize. It holds each chunk as it is between the same two
// rounds: the cut. A chunk is copied while it rests at the cut, or when the round that takes it
// past the cut is about to finish.
//
// Where pushes are applied on arrival, the chunk rests at the cut while the slowest rank pushes
// that round next. The copy has all pushes of the rounds before, and those of faster ranks that
// have arrived. The optimizer's state is copied as that of the whole chunk, so a job with another
// model or other fragments can begin with it, and the least number of steps of a fragment counts
// for all.
//
// The control thread makes a cut, hands it to the pipeline by a command, and takes it back by
// another. In between only the pipeline touches it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/counter.h"
#include "base/numa_arena.h"
#include "base/result.h"
#include "pipeline/job_shard.h"
#include "pipeline/state/state_codec.h"

namespace pbox::pipeline {

class StateCut {
 public:
  // A cut of the shard's chunks as they are when `round`, which is not the first, is open. Control
  // thread; allocates bytes_of(shard). kResourceExhausted: there is not enough memory.
  static Result<std::unique_ptr<StateCut>> create(const JobShard& shard, uint32_t round);
  static size_t bytes_of(const JobShard& shard);

  // Pipeline. The chunk's open round, or the slowest rank's, is about to finish: copies the chunk
  // if it rests at the cut.
  void copy_before_round(const JobShard& shard, const Chunk& chunk);
  // Pipeline. Copies some of the chunks that rest at the cut. It looks at a bounded number of
  // chunks and copies a bounded number of bytes, so that it takes about a millisecond at most. A
  // large chunk, which is always copied whole, may exceed the bound.
  void copy_resting(const JobShard& shard);

  // Any thread. The number of chunks copied, and of chunks that had passed the cut before they
  // could be copied.
  uint32_t copied() const { return static_cast<uint32_t>(copied_.get()); }
  uint32_t missed() const { return static_cast<uint32_t>(missed_.get()); }
  uint32_t chunk_count() const { return static_cast<uint32_t>(copies_.size()); }

  // One per chunk of the shard; rounds_finished is 0 for a chunk that was not copied. Control
  // thread, once the pipeline has given the cut back.
  const std::vector<StateView>& copies() const { return copies_; }
  uint64_t bytes() const { return arena_.size(); }
  static constexpr size_t kLookedMax = 4096;
  static constexpr size_t kCopiedBytesMax = 2u << 20;

 private:
  // Returns the bytes copied.
  size_t copy(const JobShard& shard, const Chunk& chunk);

  uint32_t round_ = 0;
  NumaArena arena_;
  std::vector<StateView> copies_;         // by chunk index
  std::vector<std::span<float>> memory_;  // by chunk index: a packed state in the arena
  std::vector<bool> is_missed_;           // by chunk index
  uint32_t next_ = 0;                     // chunk that copy_resting() examines next
  SingleWriterCounter copied_, missed_;
};

}  // namespace pbox::pipeline
