// The port of a box that serves workers of its own host: lanes of shared memory for these, and a
// UDP socket for all others. Both feed one pipeline.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/numa_arena.h"
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

  // Makes a lane with the worker that has sent this hello over `connection`, and answers it. Takes
  // over the connection if it succeeds.
  Status attach(uint64_t owner, const LaneGrant& grant, const ReceivedHello& received,
                Descriptor& connection);
  // Does nothing, because attach() shows the memory to each worker.
  Status add_memory(const std::byte* /*memory*/, size_t /*bytes*/) { return ok_status(); }
  // Call it once no more packets point into the memory. Returns false while a worker may still read
  // there; then call it again later. Workers that have not closed their lanes kRevokeNs after the
  // first call lose the pages: a read of them then ends the worker.
  bool remove_memory(const std::byte* memory, size_t bytes);
  static constexpr uint64_t kRevokeNs = 60 * kNanosPerSecond;
  bool close(uint64_t owner) { return lanes_->close(owner); }
  size_t reap() { return lanes_->reap(); }

 private:
  // Memory that workers may read.
  struct Shown {
    Descriptor file;
    std::vector<Descriptor> connections;  // to the workers that have mapped it
    uint64_t removed_ns = 0;              // time of the first remove_memory(); 0: none
  };

  Result<std::unique_ptr<ShmLane>> make_lane(const LaneGrant& grant, const ReceivedHello& received,
                                             Descriptor connection, LaneAnswer& answer,
                                             std::vector<Descriptor>& descriptors);
  Status show(const NumaArena& memory, const Descriptor& connection);
  size_t receive_from_socket(std::span<RxPacket> packets);
  void watch_socket();

  SocketPort socket_;
  std::unique_ptr<LaneSet> lanes_;
  std::map<const std::byte*, Shown> shown_;  // control thread only
  uint32_t socket_events_ = 0;               // epoll events watched on the socket
  bool socket_is_full_ = false;              // the socket took fewer packets than offered
  bool socket_first_ = false;                // rx_burst last received from the socket first
};

static_assert(Port<ShmPort>);

}  // namespace pbox::nic
