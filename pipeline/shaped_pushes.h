// Pushes of collectives (nic/wire/collective.h): checks, claims and combines the fragments of
// slots. The first push of a slot's round says what the round is. If another rank's push says
// something else, the ranks disagree about the operation: no packet is accepted any more, and the
// control thread ends the job. On the data path; used by Engine alone.
#pragma once

#include "nic/wire/header.h"
#include "pipeline/engine_context.h"
#include "pipeline/flight_recording.h"
#include "pipeline/job_shard.h"
#include "pipeline/reduce/combine.h"
#include "pipeline/reduce/reduce.h"

namespace pbox::pipeline {

class ShapedPushes {
 public:
  ShapedPushes(EngineContext& context, FlightRecording& flight, const reduce::Kernels& kernels)
      : context_(context),
        flight_(flight),
        kernels_(kernels),
        combiners_(reduce::combiners_for(kernels.target)) {}

  // Claims the fragments of a push of the open round, and combines its payload. Returns false, and
  // counts the packet, if it must not count. Otherwise the round may be complete.
  bool take(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  // Returns the fragments that a push of a finished round shows to be missing on its rank.
  static uint64_t asked_mask(const Chunk& chunk, const wire::Header& header);

 private:
  // Returns whether the push's shape is the open round's, which the first push gives it.
  bool take_shape(JobShard& shard, const Session& session, Chunk& chunk,
                  const wire::Header& header);
  bool check_fragment(const JobShard& shard, const Chunk& chunk, const wire::Header& header);
  bool claim(const JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header);
  void combine(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);

  EngineContext& context_;
  FlightRecording& flight_;
  const reduce::Kernels& kernels_;
  reduce::Combiners combiners_;
};

}  // namespace pbox::pipeline
