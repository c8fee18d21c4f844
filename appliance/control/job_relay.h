// How one part joins another box as a rank there: the box that sums the sums of several racks, or
// the box that keeps the part's backup copy. Pure.
#pragma once

#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/part_state.h"
#include "appliance/control/upstream.h"

namespace pbox::control {

// Returns the description with which a relayed job joins the upstream box.
RelaySpec relay_spec(const JobSpec& spec, uint64_t join_timeout_ns);

// Checks the number of workers of all racks, as the upstream box has summed it. `own`: those of
// this rack.
Status check_worker_count(float all, uint32_t own);

// Returns the description with which a part with replicas = 1 joins its backup box. `name`: of the
// copy there. The chunks
// there are backup blocks: weights and optimizer state in f32.
RelaySpec backup_spec(const JobSpec& spec, const std::string& name);

// Returns the backup block of each chunk that begins from `state`; empty for other chunks.
std::vector<std::vector<float>> backup_blocks(const JobSpec& spec, const PartState& state);

}  // namespace pbox::control
