#include "nic/shm/lane.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/event.h"

namespace pbox::nic {

// Shuts the connection down, because the box may keep a copy of the descriptor (port.cc): then the
// other end would not see that this end is closed.
ShmLane::~ShmLane() {
  shutdown(connection_.get(), SHUT_WR);
}

// Failures are ignored: the other end has unread bells already, or is gone.
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
