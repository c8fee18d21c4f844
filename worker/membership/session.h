// Checks what the box says in SESSION before anything is built on it. Pure.
#pragma once

#include <vector>

#include "base/result.h"
#include "nic/wire/control.pb.h"
#include "worker/protocol/session_spec.h"

namespace pbox::worker {

// Returns the complete spec except for this side's own bounds. `box`: the peer of the control
// connection, whose address is that of pipelines without one of their own. Returns an error if such
// a session could not serve these tensors, or if this release does not know how to reach the box.
Result<SessionSpec> parse_session(const proto::Session& session,
                                  const std::vector<TensorSpec>& tensors, const nic::Endpoint& box);

}  // namespace pbox::worker
