// Pushed fragments that are zero: a packet names them, and their bytes are not sent
// (nic/wire/zeros.h). Sums and results have the same bits as if the zeros had been sent. On the
// data path; used by Engine alone.
#pragma once

#include "nic/wire/zeros.h"
#include "pipeline/engine_context.h"
#include "pipeline/job_shard.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

class ZeroPushes {
 public:
  ZeroPushes(EngineContext& context, const reduce::Kernels& kernels)
      : context_(context), kernels_(kernels) {}

  // Returns the fragments that the packet names. Returns 0, and counts the packet, if it does not
  // fit the chunk.
  uint64_t read(const JobShard& shard, const Chunk& chunk, const wire::Parsed& parsed) const;
  // Adds these fragments, which were claimed just now, to the open round.
  void add(JobShard& shard, Session& session, Chunk& chunk, uint64_t fragments) const;

 private:
  void add_fragment(const JobShard& shard, const Session& session, Chunk& chunk,
                    uint32_t fragment) const;

  EngineContext& context_;
  const reduce::Kernels& kernels_;
};

// Called when the result is made, before the round ends: finds the result's zero fragments.
void note_zero_results(const JobShard& shard, Chunk& chunk);

}  // namespace pbox::pipeline
