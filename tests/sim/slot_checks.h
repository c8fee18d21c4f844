// Checks of the slots of collectives in a pipeline. Called by BoxChecker.
#pragma once

#include <cstdint>
#include <string>

#include "pipeline/job_shard.h"
#include "tests/sim/job_model.h"

namespace pbox::sim {

// box_checker.cc: names a round, for messages.
std::string place(const JobModel& job, const pipeline::Chunk& chunk, uint64_t round);

// A fragment of the open round combines each rank whose bit is claimed once.
void check_slot_sum(const JobModel& job, const pipeline::JobShard& shard,
                    const pipeline::Chunk& chunk, uint32_t fragment);
// The last finished round is one that all ranks' calls make alike, and its result is right.
void check_slot_result(const JobModel& job, const pipeline::Chunk& chunk);
// A RESULT goes to a rank that its operation is for.
void check_slot_receiver(const JobModel& job, const pipeline::JobShard& shard,
                         const wire::Header& header);

}  // namespace pbox::sim
