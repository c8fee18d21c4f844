// The last error of each thread, for calls of the C ABI that have no context.
#pragma once

#include <string>

namespace pbox::worker {

// pbox_last_error(NULL) returns `message` to the calling thread from now on.
void set_thread_error(const std::string& message);

}  // namespace pbox::worker
