// The rules for the options of a job of collectives (nic/wire/collective.h).
#pragma once

#include "base/result.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

// Checks the JOIN of a job of collectives; any other JOIN passes. The error names the first option
// that such a job cannot have, and why. The function is pure.
Status check_collective(const proto::Join& join);

}  // namespace pbox::control
