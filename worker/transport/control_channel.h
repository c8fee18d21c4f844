// The worker's end of the control connection: framed messages over a non-blocking TCP socket. One
// thread at a time.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/control_frame.h"
#include "worker/transport/box_addresses.h"

namespace pbox::worker {

// The error for a box whose name is still being resolved at the deadline.
Error unresolved(const std::string& box);

class ControlChannel {
 public:
  // Starts to connect to the box, which errors name, at one of its addresses after another. No
  // message can be sent or received until connected().
  static Result<ControlChannel> open(const std::string& box, BoxAddresses::Addresses addresses);
  // Connects, and blocks until the connection is established, for at most timeout_ms, or until
  // another thread has set `cancelled`. If no address answers, the name is resolved again.
  static Result<ControlChannel> connect(const std::string& box, BoxAddresses& addresses,
                                        uint32_t timeout_ms,
                                        const std::atomic<bool>* cancelled = nullptr);
  // Returns true once the connection is established. Returns false while one of the box's addresses
  // is still being tried; the descriptor becomes writable when that ends. Returns an error if no
  // address is left.
  Result<bool> connected();

  ControlChannel(ControlChannel&& other) noexcept;
  ControlChannel& operator=(ControlChannel&& other) noexcept;
  ~ControlChannel();

  int fd() const { return fd_; }
  const nic::Endpoint& peer() const { return peer_; }
  nic::Endpoint local() const;  // this end, once it has begun to connect
  const std::string& box() const { return box_; }

  // Queues a message and writes as much as the socket takes now.
  Status send(const proto::WorkerMessage& message);
  // Writes what is still queued. Also ok if the socket takes no more for now.
  Status flush();
  // Closes this direction of the connection. Call it when everything has been written.
  void end() const;
  bool wants_write() const { return !outgoing_.empty() || !is_connected_; }
  // Returns the messages that have arrived. Returns an error once the connection is closed or its
  // data cannot be decoded; messages that arrived before are returned first.
  Result<std::vector<proto::BoxMessage>> receive();

 private:
  explicit ControlChannel(std::string box) : box_(std::move(box)) {}
  Status try_next();
  Error unreachable(int error_number) const;

  BoxAddresses::Addresses addresses_;
  size_t tried_ = 0;  // number of addresses tried so far
  bool is_connected_ = false;
  int fd_ = -1;
  nic::Endpoint peer_;
  std::string box_;
  std::string outgoing_;
  wire::FrameReader reader_;
  std::string broken_;  // why the connection is over; empty while it is established
};

}  // namespace pbox::worker
