// The port of a box that serves workers of its own host: lanes of shared memory for those, and a
// UDP socket for all others. Both feed one pipeline.
#pragma once

#include <memory>

#include "nic/port.h"
#include "nic/shm/hello.h"
#include "nic/shm/lane_set.h"
#include "nic/socket/port.h"

namespace pbox::nic {

// Satisfies Port. Threads: rx_burst, tx_burst and event_fd belong to the polling thread, all others
// to the control thread.
class ShmPort {
 public:
  explicit ShmPort(SocketPort socket)
      : socket_(std::move(socket)), lanes_(std::make_unique<LaneSet>()) {}

  size_t rx_burst(std::span<RxPacket> packets);
  size_t tx_burst(std::span<const TxPacket> packets);
  int event_fd();
  Capabilities capabilities() const { return socket_.capabilities(); }
  const PortCounters& counters() const { return socket_.counters(); }
  const Endpoint& local() const { return socket_.local(); }

  // Makes a lane with the worker that has sent this hello over `connection`, and answers it. The
  // worker may send packets of session `spi` there. Takes over the connection if it succeeds.
  Status attach(uint64_t owner, uint32_t spi, const ReceivedHello& received,
                Descriptor& connection);
  bool close(uint64_t owner) { return lanes_->close(owner); }
  size_t reap() { return lanes_->reap(); }

 private:
  size_t receive_from_socket(std::span<RxPacket> packets);
  void watch_socket();

  SocketPort socket_;
  std::unique_ptr<LaneSet> lanes_;
  uint32_t socket_events_ = 0;   // epoll events watched on the socket
  bool socket_is_full_ = false;  // the socket took fewer packets than offered
  bool socket_first_ = false;    // whether the socket is received from first
};

static_assert(Port<ShmPort>);

}  // namespace pbox::nic
