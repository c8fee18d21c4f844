// Control connections: ordered streams of messages between a worker and a box, or between two
// boxes, one of which takes the worker's place here. They stall while packets between the two hosts
// are blocked. They may break, and an end may learn of that only when it next sends.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"

namespace pbox::sim {

using ConnectionId = uint64_t;

// Receives the events of a host's control connections.
class ControlEnd {
 public:
  virtual ~ControlEnd() = default;
  // Called when a worker connects. Returns false if no process listens at this box.
  virtual bool on_accept(ConnectionId id, HostId from) = 0;
  virtual void on_connected(ConnectionId id) = 0;
  virtual void on_control_message(ConnectionId id, const std::string& body) = 0;
  virtual void on_closed(ConnectionId id, const std::string& reason) = 0;
};

class ControlNetwork {
 public:
  ControlNetwork(EventQueue& queue, Network& network, uint64_t latency_ns)
      : queue_(queue), network_(network), latency_ns_(latency_ns) {}

  void attach(HostId host, ControlEnd& end) { ends_[host] = &end; }

  // Begins to connect. The outcome is reported later, by on_connected or on_closed.
  ConnectionId connect(HostId worker, HostId box);
  void send(ConnectionId id, HostId from, std::string body);
  // Closes the connection once everything sent before is delivered. The host that closes gets no
  // more events of the connection.
  void close(ConnectionId id, HostId from);
  // Called when the host's process dies. Its peers see the connections end at once. If the whole
  // machine fails (`silently`), they see it only when they next send and the machine answers again.
  void abort_all(HostId host, bool silently);

  // Blocks all of a host's connections until this time.
  void stall(HostId host, uint64_t until_ns) { stalled_until_ns_[host] = until_ns; }
  // Resets all connections of the host at both ends.
  void break_all(HostId host);
  size_t open_count() const { return connections_.size(); }
  size_t open_count(HostId box) const;
  uint64_t message_count() const { return message_count_; }  // sent so far

 private:
  struct Item {
    uint64_t due_ns = 0;
    bool is_close = false;
    std::string body = {};
  };
  struct Connection {
    HostId worker = 0, box = 0;
    bool worker_open = true, box_open = false;
    bool halves_lost = false;  // one end vanished without closing
    std::deque<Item> to_worker = {}, to_box = {};
  };

  bool passes(const Connection& connection);
  void accept(ConnectionId id);
  void enqueue(ConnectionId id, HostId from, Item item);
  void deliver(ConnectionId id, bool to_box);
  void finish(ConnectionId id, HostId at, const std::string& reason);
  void drop_if_over(ConnectionId id);

  EventQueue& queue_;
  Network& network_;
  uint64_t latency_ns_;
  std::map<HostId, ControlEnd*> ends_;
  std::map<HostId, uint64_t> stalled_until_ns_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_id_ = 1;
  uint64_t message_count_ = 0;
};

}  // namespace pbox::sim
