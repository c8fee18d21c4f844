// Plans where the chunks of one part go on, from what its ranks have stated and from the state that
// the previous owner hands over. `state` is null if there is none. All functions are pure.
#pragma once

#include <vector>

#include "appliance/control/job_spec.h"
#include "appliance/control/part_state.h"
#include "appliance/control/recovery_plan.h"
#include "appliance/control/roster.h"

namespace pbox::control {

// Returns a start for each chunk. At least one rank must resume, and all that resume must be ready.
// Chunks that are not handed over are not yet adapted to new ranks or to mode optimize.
Result<std::vector<ChunkStart>> plan_starts(const JobSpec& spec, const Roster& roster,
                                            const PartState* state);

// Returns the starts with which the part can be opened: those of plan_starts(), adapted to new
// ranks and to mode optimize. Empty if no rank resumes: then all chunks begin at round 0.
Result<std::vector<ChunkStart>> plan_opening(const JobSpec& spec, const Roster& roster,
                                             const PartState* state);

// Returns whether `state` is a state of this job, and the ranks are in the rounds in which it was
// left.
bool continues(const JobSpec& spec, const Roster& roster, const PartState& state);

// Returns the resuming ranks with which the job cannot go on, whatever the others have.
Result<std::vector<uint32_t>> beyond_recovery(const JobSpec& spec, const Roster& roster,
                                              const PartState* state);

// Returns whether some chunk would begin with initial weights.
bool begins_somewhere(const JobSpec& spec, const Roster& roster, const PartState* state);

// Returns whether some chunk would go on with weights that a rank gives back, but without its
// optimizer state.
bool lacks_optimizer_state(const JobSpec& spec, const Roster& roster, const PartState* state);

uint32_t chunk_count(const JobSpec& spec);
// Returns the number of chunks of each tensor.
std::vector<uint32_t> chunk_counts(const JobSpec& spec);
// Returns the number of f32 values in the state of each chunk: its weights and its optimizer state.
std::vector<size_t> state_value_counts(const JobSpec& spec);

}  // namespace pbox::control
