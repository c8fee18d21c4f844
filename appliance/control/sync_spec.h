// A job's consistency model as its workers ask for it: parsed from JOIN, and every combination that
// means nothing refused. Pure.
#pragma once

#include <optional>
#include <string>

#include "appliance/control/job_spec.h"

namespace pbox::appliance {

// "bsp", "asp", ...
const char* to_string(wire::SyncModel model);
const char* to_string(wire::Release release);
const char* to_string(wire::Reads reads);

// `spec`: everything else that the job asks for. The error names field, value and remedy. What the
// model implies is filled in: ESSP reads cached data, and an unset probability is 1.
Result<wire::SyncSpec> parse_sync(const proto::Join& join, const JobSpec& spec);

// As first_difference of jobs.
std::optional<std::string> sync_difference(const wire::SyncSpec& job, const wire::SyncSpec& worker);

}  // namespace pbox::appliance
