// The memory that a part of a job takes on a box, counted from its description before anything is
// allocated. The time that this takes grows with the number of tensors, not of chunks. All
// functions are pure.
#pragma once

#include <cstdint>

#include "appliance/control/job_spec.h"
#include "pipeline/shard_memory.h"

namespace pbox::control {

// Returns the spec that all shards of the part share, without chunks and session numbers. A part
// with replicas counts as replicated, whether it has a copy or not.
pipeline::ShardSpec shard_shape(const JobSpec& spec);

// Returns the bytes of a shard that has all chunks of the part.
uint64_t one_shard_bytes(const JobSpec& spec);

// Returns how much memory of a worker on this host the box reads in place (nic::LaneGrant): enough
// for inputs and outputs of all parts, which need not have equal sizes.
uint64_t worker_memory_bytes_max(const JobSpec& spec);

// Returns the bytes that the part takes beside its shards: names, members, tables by chunk, the
// reports of ranks that resume, messages that start the part, and what its relay keeps.
uint64_t control_bytes(const JobSpec& spec);

}  // namespace pbox::control
