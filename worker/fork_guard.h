// What a forked child (a data loader, say) must not keep: it inherits the descriptors of the
// parent's connections, and as long as it holds them the box cannot see the parent die. Child
// processes close them right after fork.
#pragma once

namespace pbox::worker {

// Descriptors to close in a forked child. Any thread; a bounded table, so that the child's handler
// runs without locks or allocation.
void close_in_child(int fd);
void forget_in_child(int fd);

}  // namespace pbox::worker
