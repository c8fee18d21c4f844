// Checks whether this box and a peer, and the ranks of one job, have a version of the control
// protocol in common that has every field which they use. Pure.
#pragma once

#include <string>

#include "appliance/control/job.h"
#include "nic/wire/control_versions.h"

namespace pbox::control {

// kVersionMismatch if the sender talks no version that this box talks, or if the message needs a
// field that this box does not know. The error names both.
Status check_versions(const proto::WorkerMessage& message, wire::AddedFields fields);

// kVersionMismatch if the job uses a field that the worker's version does not have, or the worker
// uses one that the version of a rank before it does not have.
Status check_versions_of_ranks(const Job& job, const proto::WorkerMessage& join,
                               wire::AddedFields fields);

// Returns the newest version that this box and the sender of the JOIN talk. They have one in
// common.
uint32_t session_version(const proto::WorkerMessage& join);

}  // namespace pbox::control
