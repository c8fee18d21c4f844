#include "nic/rdma/port.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "nic/socket/receive_room.h"

namespace pbox::nic {
namespace {

PortCounter counter_of(DeviceEventKind kind) {
  switch (kind) {
    case DeviceEventKind::kDeviceFatal: return PortCounter::kEventDeviceFatal;
    case DeviceEventKind::kPortDown: return PortCounter::kEventPortDown;
    case DeviceEventKind::kPortUp: return PortCounter::kEventPortUp;
    case DeviceEventKind::kQueuePairFatal: return PortCounter::kEventQueuePairFatal;
    case DeviceEventKind::kLastReceive: return PortCounter::kEventLastReceive;
    case DeviceEventKind::kOther: break;
  }
  return PortCounter::kEventOther;
}

}  // namespace

Result<RdmaPort> RdmaPort::open(SocketPort socket, RdmaQueue queue) {
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_fd < 0) return system_error("cannot create an epoll instance", errno);
  return RdmaPort(std::move(socket), std::move(queue), epoll_fd);
}

RdmaPort::RdmaPort(RdmaPort&& other) noexcept
    : socket_(std::move(other.socket_)),
      queue_(std::move(other.queue_)),
      epoll_fd_(std::exchange(other.epoll_fd_, -1)),
      queue_fd_(other.queue_fd_),
      queue_events_(other.queue_events_),
      socket_events_(other.socket_events_),
      socket_is_full_(other.socket_is_full_),
      socket_first_(other.socket_first_) {}

RdmaPort::~RdmaPort() {
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
}

Result<wire::QueuePairAddress> RdmaPort::connect(uint64_t owner,
                                                 const wire::QueuePairAddress& peer) {
  queue_.close(owner);
  queue_.reap();
  const auto prepared = queue_.prepare(owner, peer.landing_slots_wanted);
  if (!prepared) return prepared.error();
  // Workers have no rings. If a worker claims to have one, it is not used.
  wire::QueuePairAddress other = peer;
  other.landing = {};
  const Status connected = queue_.complete(prepared->endpoint, other);
  if (connected) return prepared->own;
  queue_.close(owner);
  return connected.error();
}

std::optional<std::string> RdmaPort::next_event() {
  const auto event = queue_.device().next_event();
  if (!event) return std::nullopt;
  queue_.on_event(*event);
  queue_.counters().add(counter_of(event->kind));  // only the control thread writes these
  return "RDMA device " + queue_.device().name() + ": " + event->text;
}

// Socket and queue take turns to go first, so that neither kind of worker starves the other.
size_t RdmaPort::rx_burst(std::span<RxPacket> packets) {
  socket_first_ = !socket_first_;
  if (socket_first_) {
    const size_t count = socket_.rx_burst(packets);
    return count > 0 ? count : queue_.rx_burst(packets);
  }
  const size_t count = queue_.rx_burst(packets);
  return count > 0 ? count : socket_.rx_burst(packets);
}

size_t RdmaPort::tx_burst(std::span<const TxPacket> packets) {
  size_t sent = 0;
  socket_is_full_ = false;
  while (sent < packets.size()) {
    PBOX_DCHECK(packets[sent].to != nullptr);
    const bool is_rdma = is_queue_pair(*packets[sent].to);
    size_t end = sent + 1;
    while (end < packets.size() && is_queue_pair(*packets[end].to) == is_rdma) ++end;
    const auto run = packets.subspan(sent, end - sent);
    const size_t count = is_rdma ? queue_.tx_burst(run) : socket_.tx_burst(run);
    PBOX_DCHECK(count <= run.size());
    sent += count;
    if (count == run.size()) continue;
    socket_is_full_ = !is_rdma;
    break;
  }
  const uint64_t failures = socket_.counters().get(PortCounter::kSendFailures);
  queue_.counters().values[static_cast<size_t>(PortCounter::kSendFailures)].set(failures);
  return sent;
}

void RdmaPort::watch(int fd, uint32_t events, uint32_t& watched) const {
  if (events == watched) return;
  epoll_event event{};
  event.events = events;
  const int change = watched == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_fd_, change, fd, &event) == 0) watched = events;
}

int RdmaPort::event_fd() {
  const int queue_fd = queue_.event_fd();
  if (queue_fd != queue_fd_) {
    watch(queue_fd_, 0, queue_events_);
    queue_fd_ = queue_fd;
  }
  watch(queue_fd_, EPOLLIN, queue_events_);
  watch(socket_.event_fd(), socket_is_full_ ? EPOLLIN | EPOLLOUT : EPOLLIN, socket_events_);
  return epoll_fd_;
}

Capabilities RdmaPort::capabilities() const {
  Capabilities can = socket_.capabilities();
  can.kind = "rdma";
  can.receive_slots = queue_.receive_slots();
  // Where receive_slots is set, the caller takes this value as bytes of fragments that fit, not as
  // the kernel's memory.
  can.receive_buffer_bytes =
      receivable_bytes(can.receive_buffer_bytes, limits::kFragmentBytesJumbo);
  return can;
}

}  // namespace pbox::nic
