// The worker's end of the control connection: framed messages over a TCP socket that never blocks
// after connecting. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/control_frame.h"

namespace pbox::worker {

class ControlChannel {
 public:
  // box: "host:port" or "[v6]:port"; the host may be a name. Tries each address it resolves to.
  static Result<ControlChannel> connect(const std::string& box, uint32_t timeout_ms);

  ControlChannel(ControlChannel&& other) noexcept;
  ControlChannel& operator=(ControlChannel&& other) noexcept;
  ~ControlChannel();

  int fd() const { return fd_; }
  const nic::Endpoint& peer() const { return peer_; }
  const std::string& box() const { return box_; }

  // Queues a message and writes what the socket takes now.
  Status send(const control::WorkerMessage& message);
  // Writes what is still queued. Ok also if the socket takes no more for now.
  Status flush();
  bool wants_write() const { return !outgoing_.empty(); }
  // The messages that have arrived. An error once the connection is gone or speaks nonsense;
  // messages that came before the end are returned first.
  Result<std::vector<control::BoxMessage>> receive();

 private:
  ControlChannel(int fd, nic::Endpoint peer, std::string box)
      : fd_(fd), peer_(peer), box_(std::move(box)) {}

  int fd_ = -1;
  nic::Endpoint peer_;
  std::string box_;
  std::string outgoing_;
  wire::FrameReader reader_;
  std::string broken_;  // why the connection is over; empty while it stands
};

}  // namespace pbox::worker
