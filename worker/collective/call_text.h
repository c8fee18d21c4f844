// Describes operations in words, for errors.
#pragma once

#include <string>

#include "worker/protocol/slot_round.h"

namespace pbox::worker {

// Returns, for example, "operation 7 (all_reduce of 100 f32, sum)".
std::string to_text(const CollectiveCall& call);

}  // namespace pbox::worker
