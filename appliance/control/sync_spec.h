// A job's consistency model as its workers request it: parsed from JOIN. Combinations that have no
// meaning are refused. Pure.
#pragma once

#include <optional>
#include <string>

#include "appliance/control/job_spec.h"

namespace pbox::control {

// Returns "bsp", "asp", ...
const char* to_string(wire::SyncModel model);
const char* to_string(wire::Release release);
const char* to_string(wire::Reads reads);

// `spec`: the other settings of the job. The error names the field, its value and the remedy. Fills
// in what the model implies: ESSP reads cached data, and an unset probability is 1.
Result<wire::SyncSpec> parse_sync(const proto::Join& join, const JobSpec& spec);

// As first_difference(), for the consistency model.
std::optional<std::string> sync_difference(const wire::SyncSpec& job, const wire::SyncSpec& worker);

}  // namespace pbox::control
