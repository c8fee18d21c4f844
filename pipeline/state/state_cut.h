// A snapshot's copy of a shard in mode optimize. It has all chunks as they are between the same two
// rounds: the cut. A chunk is copied while it rests at the cut, or when the round that takes it
// past the cut is about to finish.
//
// Where pushes are applied on arrival, a chunk rests at the cut while the cut's round is the one
// that the slowest rank pushes next. The copy has all pushes of the rounds before, and those of
// faster ranks that have arrived. The optimizer state is copied as one for the whole chunk, so that
// a job with another model or other fragments can begin with it. Its number of steps is the least
// of all fragments.
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
  // Makes an empty cut for the shard's chunks as they are when `round`, not the first, is open. The
  // control thread calls it. Allocates bytes_of(shard). kResourceExhausted: too little memory.
  static Result<std::unique_ptr<StateCut>> create(const JobShard& shard, uint32_t round);
  static size_t bytes_of(const JobShard& shard);

  // Pipeline: copies a chunk that rests at the cut. Called before its open round finishes.
  void copy_before_round(const JobShard& shard, const Chunk& chunk);
  // Pipeline: copies some of the chunks that rest at the cut. It looks at a bounded number of
  // chunks and copies a bounded number of bytes, so that it takes about a millisecond at most. A
  // large chunk, which is always copied whole, may exceed the bound.
  void copy_resting(const JobShard& shard);

  // Return the number of chunks copied, and of chunks that had passed the cut before they could be
  // copied. Any thread may call them.
  uint32_t copied() const { return static_cast<uint32_t>(copied_.get()); }
  uint32_t missed() const { return static_cast<uint32_t>(missed_.get()); }
  uint32_t chunk_count() const { return static_cast<uint32_t>(copies_.size()); }

  // Returns one view per chunk of the shard; its rounds_finished is 0 if the chunk was not copied.
  // The control thread calls it, once the pipeline has given the cut back.
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
