// Pushes of collectives (nic/wire/collective.h): checks, claims and combines the fragments of
// slots. The first push that counts in a slot's round determines the round's shape. If another
// rank's push states a different shape, the ranks disagree about the operation: no packet is
// accepted any more, and the control thread ends the job. On the data path; used by Engine alone.
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
  // counts the packet, if the push must not count. If it returns true, the round may be complete.
  bool take(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);
  // Returns the fragments of the result that a repeated push of a finished round asks for.
  static uint64_t asked_mask(const Chunk& chunk, const wire::Header& header);

 private:
  bool read_shape(const JobShard& shard, const Chunk& chunk, const wire::Header& header,
                  wire::RoundShape& shape);
  bool check_fragment(const JobShard& shard, const Chunk& chunk, const wire::Header& header,
                      const ShapedRound& round);
  bool claim(const JobShard& shard, Session& session, Chunk& chunk, const wire::Header& header,
             uint64_t mask);
  void combine(JobShard& shard, Session& session, Chunk& chunk, const wire::Parsed& parsed);

  EngineContext& context_;
  FlightRecording& flight_;
  const reduce::Kernels& kernels_;
  reduce::Combiners combiners_;
};

}  // namespace pbox::pipeline
