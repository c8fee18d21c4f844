// The options of a job of collectives (nic/wire/collective.h), as its workers ask for it. Pure.
#pragma once

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

// Checks a JOIN of such a job; any other passes. The error names the first option that it cannot
// have, and why.
Status check_collective(const proto::Join& join);

}  // namespace pbox::control
