// Wakes a thread that waits for a descriptor: an eventfd, which is readable from set_event() until
// clear_event(). Any thread; also on the data path.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/descriptor.h"
#include "base/result.h"

namespace pbox {

// Creates an event. With `is_set` it is readable from the start, and stays so unless it is cleared.
// Fails with kSystem if the process or the system has no descriptors left.
inline Result<Descriptor> create_event(bool is_set = false) {
  Descriptor event(eventfd(is_set ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.ok()) return system_error("cannot create an eventfd", errno);
  return event;
}

// Sets the event `fd`; does nothing if `fd` is negative. If the write fails because the counter is
// full, the event is set already.
inline void set_event(int fd) {
  const uint64_t one = 1;
  while (fd >= 0 && write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

inline void clear_event(int fd) {
  uint64_t count = 0;
  while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

}  // namespace pbox
