// The memory of a shard, known before it is built: its arena in whole pages, and the tables beside
// the arena. Quotas are checked against it. A value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

class ShardMemory {
 public:
  // `job`: the spec of the job on any of its pipelines; its list of chunks is not looked at, which
  // may be empty. Outlives this.
  explicit ShardMemory(const ShardSpec& job) : job_(job), arena_bytes_(common_footprint(job)) {}

  // Adds chunks that have the elements and the dtype of `chunk`.
  void add(const ChunkSpec& chunk, uint64_t count = 1) {
    arena_bytes_ += count * chunk_footprint(job_, chunk);
    chunks_ += count;
  }

  // Bytes on the pipeline's NUMA node, or beside: a bound that the shard does not exceed.
  uint64_t bytes() const;

 private:
  const ShardSpec& job_;
  uint64_t arena_bytes_;
  uint64_t chunks_ = 0;
};

}  // namespace pbox::pipeline
