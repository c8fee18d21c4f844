// One end of a lane of shared memory: it sends packets to the other end and receives that end's.
#pragma once

#include <utility>

#include "base/descriptor.h"
#include "nic/shm/ring.h"
#include "nic/shm/segment.h"

namespace pbox::nic {

// Set-up and the last use are the control thread's, between them one thread polls.
class ShmLane {
 public:
  // `connection`: the UNIX socket to the other end. `bell`: an eventfd that wakes the other end;
  // none: a byte on the connection does. The box has none, because a worker that shares an eventfd
  // can make writes to it block. Both segments have rings of the same size.
  ShmLane(OwnSegment own, OtherSegment other, Descriptor connection, Descriptor bell = Descriptor())
      : own_(std::move(own)),
        other_(std::move(other)),
        connection_(std::move(connection)),
        bell_(std::move(bell)),
        writer_(own_.head(), other_.head(), own_.ring(), own_.ring_bytes()),
        reader_(own_.head(), other_.head(), other_.ring(), other_.ring_bytes()),
        sleep_(own_.head(), other_.head()) {}
  ShmLane(const ShmLane&) = delete;
  ShmLane& operator=(const ShmLane&) = delete;

  int connection() const { return connection_.get(); }
  RingReader& reader() { return reader_; }

  // Returns false, and drops the packet, if the other end's ring is full.
  bool put(const TxPacket& packet) { return writer_.put(packet); }
  // Shows the other end the packets that were put, and wakes it if it sleeps.
  void publish() {
    PBOX_DCHECK(connection_.ok());
    writer_.publish();
    if (sleep_.must_wake()) [[unlikely]]
      ring();
  }
  // Call it before this end waits for the descriptor that the other end's bell makes readable. The
  // packets that were received are released.
  // Returns false if there are packets, so that it must not wait.
  bool begin_sleep() {
    reader_.release();
    sleep_.begin();
    return reader_.is_empty();
  }
  void end_sleep() { sleep_.end(); }

  // Whether the other end has broken the rules of the rings.
  bool is_broken() const { return reader_.is_broken() || writer_.is_broken(); }

 private:
  void ring() const;

  OwnSegment own_;
  OtherSegment other_;
  Descriptor connection_;
  Descriptor bell_;  // none: the connection
  RingWriter writer_;
  RingReader reader_;
  RingSleep sleep_;
};

}  // namespace pbox::nic
