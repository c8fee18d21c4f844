// Checks whether this box and a peer, and the ranks of one job, have a version of the control
// protocol in common that has every field which they use. All functions are pure.
#pragma once

#include <string>

#include "appliance/control/job.h"
#include "nic/wire/control_versions.h"

namespace pbox::control {

// Returns kVersionMismatch if the sender speaks no version that this box speaks, or if the message
// needs a field that this box does not know. The error names both.
Status check_versions(const proto::WorkerMessage& message, wire::AddedFields fields);

// Returns kVersionMismatch if the job uses a field that the worker's version does not have, or if
// the worker uses one that the version of a rank before it does not have.
Status check_versions_of_ranks(const Job& job, const proto::WorkerMessage& join,
                               wire::AddedFields fields);

// Returns the newest version that this box and the sender of the JOIN speak. They must have one in
// common.
uint32_t session_version(const proto::WorkerMessage& join);

}  // namespace pbox::control
