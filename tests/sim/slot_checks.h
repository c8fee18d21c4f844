// Checks of the slots of collectives in a pipeline. Called by BoxChecker.
#pragma once

#include <cstdint>
#include <string>

#include "pipeline/job_shard.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

// Returns the name of a round for messages. Defined in box_checker.cc.
std::string place(const JobModel& job, const pipeline::Chunk& chunk, uint64_t round);

// Checks that a fragment of the open round combines the pushes of all ranks whose bits are claimed,
// each once.
void check_slot_sum(const JobModel& job, const pipeline::JobShard& shard,
                    const pipeline::Chunk& chunk, uint32_t fragment);
// Checks that all ranks' calls agree about the last finished round, and that its result is right.
void check_slot_result(const JobModel& job, const pipeline::Chunk& chunk);
// Checks that a RESULT goes to a rank that must get it.
void check_slot_receiver(const JobModel& job, const pipeline::JobShard& shard,
                         const wire::Header& header);

}  // namespace pbox::sim
