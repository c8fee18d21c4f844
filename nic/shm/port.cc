#include "nic/shm/port.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.h"
#include "base/event.h"

namespace pbox::nic {
namespace {

Result<Descriptor> copy_of(const Descriptor& descriptor) {
  Descriptor copy(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.ok()) return system_error("cannot copy a descriptor", errno);
  return copy;
}

bool is_shown(const NumaArena* memory) {
  return memory != nullptr && memory->file().ok();
}

// Returns whether the other end has closed its end of the connection.
bool is_left(const Descriptor& connection) {
  char byte = 0;
  const ssize_t count = recv(connection.get(), &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace

// Adds the descriptors that the worker needs to `descriptors`. They must stay open until they are
// sent.
Result<std::unique_ptr<ShmLane>> ShmPort::make_lane(const LaneGrant& grant,
                                                    const ReceivedHello& received,
                                                    Descriptor connection, LaneAnswer& answer,
                                                    std::vector<Descriptor>& descriptors) {
  const LaneHello& hello = received.hello;
  if (!is_ring_size(hello.ring_bytes)) {
    return Error{ErrorCode::kInvalidArgument,
                 "ring_bytes is " + std::to_string(hello.ring_bytes) + ", not a power of two in [" +
                     std::to_string(kRingBytesMin) + ", " + std::to_string(kRingBytesMax) + "]"};
  }
  auto other = OtherSegment::map(received.segment, hello.ring_bytes);
  if (!other) return other.error();
  Mapping memory;
  if (hello.memory_bytes > 0 && hello.memory_bytes <= grant.memory_bytes_max) {
    auto mapped = map_memory_file(received.memory, hello.memory_bytes, "the worker's memory");
    if (!mapped) return mapped.error();
    memory = std::move(*mapped);
    answer.reads_memory = 1;
  }
  auto own = OwnSegment::make(hello.ring_bytes);
  if (!own) return own.error();
  auto segment = copy_of(own->file());
  if (!segment) return segment.error();
  descriptors.push_back(std::move(*segment));
  own->close_file();
  LaneMemory results;
  if (is_shown(grant.results)) {
    results = {grant.results->data(), grant.results->size()};
    answer.memory_bytes = results.bytes;
  }
  return std::make_unique<ShmLane>(std::move(*own), std::move(*other), std::move(connection),
                                   Descriptor(), results, std::move(memory));
}

Status ShmPort::attach(uint64_t owner, const LaneGrant& grant, const ReceivedHello& received,
                       Descriptor& connection) {
  auto socket = copy_of(connection);
  if (!socket) return socket.error();
  LaneAnswer answer;
  std::vector<Descriptor> files;
  auto lane = make_lane(grant, received, std::move(*socket), answer, files);
  if (!lane) return lane.error();
  auto bell = create_event();
  if (!bell) return bell.error();
  std::vector<int> sent_along{files[0].get(), bell->get()};  // the lane keeps the bell open
  if (answer.memory_bytes > 0) {
    auto results = reopen_to_read(grant.results->file());
    if (!results) return results.error();
    if (const Status shown = show(*grant.results, connection); !shown) return shown;
    sent_along.push_back(results->get());
    files.push_back(std::move(*results));
  }
  const Status attached =
      lanes_->attach(owner, grant.spi, std::move(*lane), std::move(*bell), socket_.counters());
  if (!attached) return attached;
  const Status sent = send_answer(connection.get(), answer, sent_along);
  if (sent) {
    connection = Descriptor();
  } else {
    lanes_->close(owner);
  }
  return sent;
}

Status ShmPort::show(const NumaArena& memory, const Descriptor& connection) {
  auto reader = copy_of(connection);
  if (!reader) return reader.error();
  Shown& shown = shown_[memory.data()];
  std::erase_if(shown.connections, is_left);
  shown.connections.push_back(std::move(*reader));
  if (shown.file.ok()) return ok_status();
  auto file = copy_of(memory.file());
  if (!file) return file.error();
  shown.file = std::move(*file);
  return ok_status();
}

bool ShmPort::remove_memory(const std::byte* memory, size_t /*bytes*/) {
  const auto found = shown_.find(memory);
  if (found == shown_.end()) return true;
  Shown& shown = found->second;
  const uint64_t now_ns = monotonic_ns();
  if (shown.removed_ns == 0) shown.removed_ns = now_ns;
  std::erase_if(shown.connections, is_left);
  if (!shown.connections.empty() && now_ns - shown.removed_ns < kRevokeNs) return false;
  // A worker that still has it mapped must not keep the memory.
  static_cast<void>(ftruncate(shown.file.get(), 0));
  shown_.erase(found);
  return true;
}

// Clears RxPacket::payload, which may still be set from a packet of a lane. The socket does not set
// it.
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

// Adds the socket to the epoll instance of the bells.
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
