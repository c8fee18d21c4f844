// The use of a box by jobs, and its free capacity: job slots, memory, and shards and sessions on
// each pipeline. A part counts from its first JOIN on, while it still gathers. Used on the control
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "appliance/control/registry_context.h"

namespace pbox::control {

// The use of one pipeline by all parts on this box.
struct PipelineUse {
  uint64_t round_bytes = 0;   // bytes that they move in a round
  uint64_t memory_bytes = 0;  // memory that they hold there
  uint32_t shards = 0;        // at most limits::kShardsPerPipelineMax
  uint32_t sessions = 0;      // at most limits::kSessionsPerPipelineMax
};

// Returns the bytes that a part holds: its footprint, and states that were read from snapshots and
// with which it will open.
uint64_t memory_of(const Job& job);

// Returns the use of each pipeline. `pipelines`: number of pipelines of the box.
std::vector<PipelineUse> pipeline_use(const JobTable& jobs, uint32_t pipelines);

// Returns the number of jobs that take a job slot. All parts of a job take one slot; a backup copy
// takes none.
uint32_t job_slots_taken(const JobTable& jobs);

// Returns the bytes of memory that are free on a pipeline; UINT64_MAX if there is no bound.
uint64_t free_on_pipeline(const RegistryOptions& options, uint32_t pipeline,
                          const PipelineUse& use);

// Checks that copies of the states of a job's parts may be held beside all that is here. `what`
// begins the error, "a snapshot of job 'x'"; `bytes` is the size of the copies. kResourceExhausted
// if the box's or the tenant's bound on memory forbids it.
Status check_copies(const RegistryContext& context, const JobOwner& owner, const std::string& job,
                    const std::string& what, uint64_t bytes);

// The room that this box has for further jobs.
struct FreeCapacity {
  uint32_t job_slots = 0;
  uint32_t shards = 0;             // on all pipelines together
  uint64_t memory_bytes = 0;       // on all pipelines together
  uint64_t part_memory_bytes = 0;  // memory of the largest part that fits on one pipeline
  bool operator==(const FreeCapacity&) const = default;
};

// Returns the free capacity. `memory_taken_bytes`: as JobOwner::memory_taken_bytes() returns it.
FreeCapacity free_capacity(const RegistryContext& context, uint32_t pipelines,
                           uint64_t memory_taken_bytes);

}  // namespace pbox::control
