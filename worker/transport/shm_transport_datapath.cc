#include <sys/socket.h>

#include <cerrno>

#include "base/check.h"
#include "base/clock.h"
#include "worker/transport/shm_transport.h"

namespace pbox::worker {

int ShmTransport::event_fd(uint32_t lane) const {
  PBOX_DCHECK(lane < lanes_.size());
  Lane& at = lanes_[lane];
  if (at.is_closed) return -1;  // a connection that has ended is always readable
  at.is_asleep = true;
  return at.ends->begin_sleep() ? at.ends->connection() : ready_.get();
}

// Clears the bell that the box may have rung. It rings at most once for each sleep.
void ShmTransport::wake_up(Lane& lane) {
  lane.is_asleep = false;
  lane.ends->end_sleep();
  char bell = 0;
  const ssize_t count = recv(lane.ends->connection(), &bell, sizeof(bell), MSG_DONTWAIT);
  lane.is_closed = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
  if (lane.is_closed && closed_ns_ == 0) closed_ns_ = monotonic_ns();
}

size_t ShmTransport::rx_burst(uint32_t lane, std::span<nic::RxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  Lane& at = lanes_[lane];
  if (at.is_asleep) wake_up(at);
  at.ends->reader().release();  // releases the packets of the last burst
  size_t count = 0;
  PBOX_DCHECK(packets.size() <= limits::kBurstPackets);
  while (count < packets.size()) {
    const auto packet = at.ends->next();
    if (!packet) break;
    nic::RxPacket& received = packets[count++];
    received.data = packet->header;
    received.payload = packet->payload;
    received.tag = packet->tag;
    received.bytes = packet->bytes;
  }
  return count;
}

// A packet that finds no room is lost, as on any network. The window keeps that rare.
size_t ShmTransport::tx_burst(uint32_t lane, std::span<const nic::TxPacket> packets) {
  PBOX_DCHECK(lane < lanes_.size());
  nic::ShmLane& ends = *lanes_[lane].ends;
  for (const nic::TxPacket& packet : packets) ends.put(packet);
  ends.publish();
  return packets.size();
}

}  // namespace pbox::worker
