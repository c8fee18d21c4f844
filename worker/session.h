// What the box says in SESSION, checked before anything is built on it. Pure.
#pragma once

#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "worker/core.h"

namespace pbox::worker {

// All of the spec but its pipelines, whose addresses are the caller's to resolve, and this side's
// own bounds. An error if the core could not serve such a session of these tensors.
Result<SessionSpec> parse_session(const control::Session& session,
                                  const std::vector<TensorSpec>& tensors);

}  // namespace pbox::worker
