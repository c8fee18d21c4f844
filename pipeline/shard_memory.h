// The memory that a shard will take, known before it is built: its arena in whole pages, and the
// tables beside the arena. It is checked against quotas. A value; any thread may use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pipeline/job_shard.h"

namespace pbox::pipeline {

class ShardMemory {
 public:
  // `job`: the spec of the job's shard on any of its pipelines; it outlives this. Its list of
  // chunks is ignored, and may be empty.
  explicit ShardMemory(const ShardSpec& job) : job_(job), arena_bytes_(common_footprint(job)) {}

  // Adds chunks that have the elements and the dtype of `chunk`.
  void add(const ChunkSpec& chunk, uint64_t count = 1) {
    arena_bytes_ += count * chunk_footprint(job_, chunk);
    chunks_ += count;
  }

  // Returns an upper bound on the bytes that the shard takes, on its NUMA node and elsewhere.
  uint64_t bytes() const;

 private:
  const ShardSpec& job_;
  uint64_t arena_bytes_;
  uint64_t chunks_ = 0;
};

}  // namespace pbox::pipeline
