// Descriptors that a forked child, such as a data loader, must not keep. A child inherits the
// descriptors of the parent's connections. As long as it holds them, the box cannot see the parent
// die. Children close them right after fork.
#pragma once

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox::worker {

// Adds or removes a descriptor that forked children close. Any thread may call these. The table is
// bounded, so that the child's handler needs neither locks nor allocation.
void close_in_child(int fd);
void forget_in_child(int fd);

// Makes an event (base/event.h) that forked children close. Call forget_in_child() before the event
// is destroyed.
Result<Descriptor> create_own_event();

}  // namespace pbox::worker
