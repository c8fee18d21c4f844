#include "nic/shm/lane.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/event.h"

namespace pbox::nic {

// The box may keep a copy of the descriptor (port.cc), so closing alone would not be seen.
ShmLane::~ShmLane() {
  shutdown(connection_.get(), SHUT_WR);
}

// If it fails, the other end has more bells than it looks at, or is gone.
void ShmLane::ring() const {
  if (!bell_.ok()) {
    const char one = 1;
    while (send(connection_.get(), &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
           errno == EINTR) {
    }
    return;
  }
  set_event(bell_.get());
}

}  // namespace pbox::nic
