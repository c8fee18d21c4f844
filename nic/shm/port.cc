#include "nic/shm/port.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

namespace pbox::nic {

Status ShmPort::attach(uint64_t owner, uint32_t spi, const ReceivedHello& received,
                       Descriptor& connection) {
  const uint64_t ring_bytes = received.hello.ring_bytes;
  if (!is_ring_size(ring_bytes)) {
    return Error{ErrorCode::kInvalidArgument,
                 "ring_bytes is " + std::to_string(ring_bytes) + ", not a power of two in [" +
                     std::to_string(kRingBytesMin) + ", " + std::to_string(kRingBytesMax) + "]"};
  }
  auto other = OtherSegment::map(received.segment, ring_bytes);
  if (!other) return other.error();
  auto own = OwnSegment::make(ring_bytes);
  if (!own) return own.error();
  Descriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.ok()) return system_error("cannot make an eventfd", errno);
  const Descriptor segment(fcntl(own->file().get(), F_DUPFD_CLOEXEC, 0));
  Descriptor socket(fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  if (!segment.ok() || !socket.ok()) {
    return system_error("cannot copy a descriptor", errno);
  }
  own->close_file();
  auto lane = std::make_unique<ShmLane>(std::move(*own), std::move(*other), std::move(socket));
  const int ringer = bell.get();  // stays open as long as the lane
  const Status attached =
      lanes_->attach(owner, spi, std::move(lane), std::move(bell), socket_.counters());
  if (!attached) return attached;
  const Status sent = send_answer(connection.get(), {}, {segment.get(), ringer});
  if (sent) {
    connection = Descriptor();
  } else {
    lanes_->close(owner);
  }
  return sent;
}

// The caller's array may hold what the lanes returned before.
size_t ShmPort::receive_from_socket(std::span<RxPacket> packets) {
  const size_t count = socket_.rx_burst(packets);
  for (RxPacket& packet : packets.first(count)) packet.payload = nullptr;
  return count;
}

// Socket and lanes take turns to go first, so that neither kind of worker starves the other.
size_t ShmPort::rx_burst(std::span<RxPacket> packets) {
  if (!lanes_->any()) return socket_.rx_burst(packets);
  socket_first_ = !socket_first_;
  if (socket_first_) {
    const size_t count = receive_from_socket(packets);
    if (count > 0) return count;
  }
  const size_t count = lanes_->rx_burst(packets, socket_.counters());
  if (count > 0 || socket_first_) return count;
  return receive_from_socket(packets);
}

size_t ShmPort::tx_burst(std::span<const TxPacket> packets) {
  size_t sent = 0;
  socket_is_full_ = false;
  while (sent < packets.size()) {
    PBOX_DCHECK(packets[sent].to != nullptr);
    const bool is_for_lanes = is_lane(*packets[sent].to);
    size_t end = sent + 1;
    while (end < packets.size() && is_lane(*packets[end].to) == is_for_lanes) ++end;
    const auto run = packets.subspan(sent, end - sent);
    if (is_for_lanes) {
      lanes_->send(run, socket_.counters());
      sent = end;
      continue;
    }
    const size_t count = socket_.tx_burst(run);
    PBOX_DCHECK(count <= run.size());
    sent += count;
    if (count == run.size()) continue;
    socket_is_full_ = true;
    break;
  }
  return sent;
}

// Makes the epoll instance of the bells show the socket too.
void ShmPort::watch_socket() {
  const uint32_t events = socket_is_full_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (events == socket_events_) return;
  epoll_event event{};
  event.events = events;
  const int change = socket_events_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(lanes_->bells_fd(), change, socket_.event_fd(), &event) == 0) {
    socket_events_ = events;
  }
}

int ShmPort::event_fd() {
  if (!lanes_->any()) return socket_.event_fd();
  if (!lanes_->begin_sleep()) return lanes_->ready_fd();
  watch_socket();
  return lanes_->bells_fd();
}

}  // namespace pbox::nic
