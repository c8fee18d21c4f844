// Starts threads that a process may have to do without, because there can be no more of them.
#pragma once

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace pbox {

// Starts a thread that runs `function()`. `task` completes "a thread to ...". kResourceExhausted if
// the process or the system can have no further thread.
template <typename Function>
Result<std::thread> start_thread(const std::string& task, Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::kResourceExhausted,
                 "cannot start a thread to " + task + ": " + error.what() +
                     "; raise the limit on threads (ulimit -u, or the container's pids limit)"};
  }
}

}  // namespace pbox
