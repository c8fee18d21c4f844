// Checks what the box says in SESSION before anything is built on it. Pure.
#pragma once

#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "worker/protocol/session_spec.h"

namespace pbox::worker {

// Returns the complete spec except for this side's own bounds. `box`: where the control connection
// goes; pipelines without an address of their own are there. Returns an error if such a session
// could not serve these tensors, or if the box must be reached in a way that this release does not
// know.
Result<SessionSpec> parse_session(const proto::Session& session,
                                  const std::vector<TensorSpec>& tensors, const nic::Endpoint& box);

}  // namespace pbox::worker
