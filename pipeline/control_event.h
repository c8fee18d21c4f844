// Wakes the control thread.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace pbox::pipeline {

// `fd`: an eventfd of the control thread; -1: none. If the write fails because the counter is full,
// the control thread wakes all the same.
inline void wake_control(int fd) {
  const uint64_t one = 1;
  if (fd >= 0) [[maybe_unused]]
    const ssize_t written = write(fd, &one, sizeof(one));
}

}  // namespace pbox::pipeline
