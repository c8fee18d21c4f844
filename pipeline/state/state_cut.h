// A copy of what a shard in mode optimize is between two rounds, the same two for all its chunks:
// what a snapshot holds. A chunk is copied while it rests there, or when it is about to go on.
//
// Made by the control thread, handed to the pipeline by a command and had back by another; in
// between it is the pipeline's. Of model BSP.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/counter.h"
#include "base/numa_arena.h"
#include "base/result.h"
#include "pipeline/job_shard.h"

namespace pbox::pipeline {

class StateCut {
 public:
  // Of the shard's chunks as they are when `round`, which is not the first, is the open one.
  // Control thread; allocates bytes_of(shard). kResourceExhausted: there is no memory.
  static Result<std::unique_ptr<StateCut>> create(const JobShard& shard, uint32_t round);
  static size_t bytes_of(const JobShard& shard);

  // The pipeline's. The chunk's open round is about to finish: what it was before is copied.
  void before_round(const JobShard& shard, const Chunk& chunk);
  // The pipeline's. Copies up to so many of the chunks that rest at the cut.
  void look(const JobShard& shard, uint32_t copies_max);

  // Any thread. Chunks copied; and those that were beyond the cut already, which cannot be any
  // more.
  uint32_t copied() const { return static_cast<uint32_t>(copied_.get()); }
  uint32_t missed() const { return static_cast<uint32_t>(missed_.get()); }
  uint32_t chunk_count() const { return static_cast<uint32_t>(copies_.size()); }

  // One chunk as it was. `values`: the weights, then the optimizer's state (as ChunkState).
  struct Copy {
    uint32_t chunk = 0;  // job-local id
    uint32_t value_count = 0;
    float* values = nullptr;
    uint64_t steps = 0;
    bool is_here = false;
  };
  // Control thread, once it is had back.
  const std::vector<Copy>& copies() const { return copies_; }
  uint64_t bytes() const { return arena_.size(); }

 private:
  void copy(const JobShard& shard, const Chunk& chunk);

  uint32_t round_ = 0;
  NumaArena arena_;
  std::vector<Copy> copies_;  // as the shard's chunks
  std::vector<bool> is_missed_;
  uint32_t next_ = 0;  // to be looked at
  SingleWriterCounter copied_, missed_;
};

}  // namespace pbox::pipeline
