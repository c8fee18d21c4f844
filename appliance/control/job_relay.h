// How one part joins another box as a rank there: the box that sums the sums of several racks, or
// the box that keeps the part's backup copy. All functions are pure.
#pragma once

#include <string>
#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/part_state.h"
#include "appliance/control/upstream.h"

namespace pbox::control {

// Returns the description with which a relayed job joins the upstream box. `workers`: the number of
// workers whose gradients this box sums.
RelaySpec relay_spec(const JobSpec& spec, uint32_t workers, const JobTimeouts& timeouts);

// Returns the lane of each chunk if its sums go to the upper box through `lanes` lanes. The result
// is equal on all racks. A box with `lanes` pipelines places its chunks in the same way, so that
// each pipeline has a lane of its own.
std::vector<uint8_t> uplink_lanes(const RelaySpec& relay, size_t lanes);
std::vector<uint8_t> uplink_lanes(const JobSpec& spec, size_t lanes);

// Returns the description with which a part with replicas = 1 joins its backup box. `name`: the
// copy's name there. The chunks of the copy are backup blocks: weights and optimizer state in f32.
RelaySpec backup_spec(const JobSpec& spec, const std::string& name);

// Returns the backup block of each chunk that begins from `state`; empty for other chunks.
std::vector<std::vector<float>> backup_blocks(const JobSpec& spec, const PartState& state);

}  // namespace pbox::control
