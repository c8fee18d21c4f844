// Refuses workers. Used on the control thread.
#pragma once

#include "appliance/control/registry_context.h"

namespace pbox::control {

// Tells the peer why it may not join, and closes its connection. Counts the refusal, and writes it
// to the log and the audit log. `join`: null if the peer has not said what it wants to join.
void refuse_join(RegistryContext& context, ConnectionId id, const Connection& peer,
                 const Error& why, const proto::Join* join = nullptr);

// Returns what a new process is told that takes the place of an excluded rank in a job that
// excludes for good. `why`: the reason of the loss; empty if it is not known here.
Error excluded_for_good(const JobSpec& spec, uint32_t rank, const std::string& why = {});

}  // namespace pbox::control
