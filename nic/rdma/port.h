// The port of a box with an RDMA device: queue pairs for workers that have such a device too, and a
// UDP socket for all others. Both feed one pipeline.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nic/port.h"
#include "nic/rdma/queue.h"
#include "nic/socket/port.h"

namespace pbox::nic {

// Satisfies Port. Threads: rx_burst, tx_burst and event_fd belong to the polling thread, all others
// to the control thread (see RdmaQueue).
class RdmaPort {
 public:
  static Result<RdmaPort> open(SocketPort socket, RdmaQueue queue);
  RdmaPort(RdmaPort&& other) noexcept;
  ~RdmaPort();

  size_t rx_burst(std::span<RxPacket> packets);
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd();
  Capabilities capabilities() const;
  const PortCounters& counters() const { return queue_.counters(); }
  const Endpoint& local() const { return socket_.local(); }

  // Creates a queue pair for `peer`, connects it, and returns its address for the peer. Closes all
  // earlier queue pairs of the owner.
  Result<wire::QueuePairAddress> connect(uint64_t owner, const wire::QueuePairAddress& peer);
  bool close(uint64_t owner) { return queue_.close(owner); }
  size_t reap() { return queue_.reap(); }

  // Returns the device's next event as text for a log, or nothing. The event has been handled and
  // counted.
  std::optional<std::string> next_event();

  Status add_memory(const std::byte* memory, size_t bytes) {
    return queue_.add_memory(memory, bytes);
  }
  bool remove_memory(const std::byte* memory, size_t /*bytes*/) {
    return queue_.remove_memory(memory);
  }

 private:
  RdmaPort(SocketPort socket, RdmaQueue queue, int epoll_fd)
      : socket_(std::move(socket)), queue_(std::move(queue)), epoll_fd_(epoll_fd) {}
  void watch(int fd, uint32_t events, uint32_t& watched) const;

  SocketPort socket_;
  RdmaQueue queue_;
  int epoll_fd_ = -1;
  int queue_fd_ = -1;            // the queue's last event_fd()
  uint32_t queue_events_ = 0;    // epoll events watched on queue_fd_
  uint32_t socket_events_ = 0;   // epoll events watched on the socket
  bool socket_is_full_ = false;  // the socket took fewer packets than offered
  bool socket_first_ = false;    // rx_burst last received from the socket first
};

static_assert(Port<RdmaPort>);

}  // namespace pbox::nic
