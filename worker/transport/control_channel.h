// The worker's end of the control connection: framed messages over a TCP socket that never blocks.
// One thread at a time.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/wire/control_frame.h"

namespace pbox::worker {

class ControlChannel {
 public:
  // box: "host:port" or "[v6]:port"; the host may be a name, and is resolved here, which may block.
  // Begins to connect: until connected() no message goes either way.
  static Result<ControlChannel> open(const std::string& box);
  // Blocks until the connection stands, for at most timeout_ms, or until another thread has set
  // `cancelled`.
  static Result<ControlChannel> connect(const std::string& box, uint32_t timeout_ms,
                                        const std::atomic<bool>* cancelled = nullptr);
  // True once the connection stands; false while one of the box's addresses is still tried, which
  // the descriptor shows by becoming writable. An error if none is left.
  Result<bool> connected();

  ControlChannel(ControlChannel&& other) noexcept;
  ControlChannel& operator=(ControlChannel&& other) noexcept;
  ~ControlChannel();

  int fd() const { return fd_; }
  const nic::Endpoint& peer() const { return peer_; }
  const std::string& box() const { return box_; }

  // Queues a message and writes what the socket takes now.
  Status send(const proto::WorkerMessage& message);
  // Writes what is still queued. Ok also if the socket takes no more for now.
  Status flush();
  // Nothing more will be sent. Once all has been written.
  void end() const;
  bool wants_write() const { return !outgoing_.empty() || !is_connected_; }
  // The messages that have arrived. An error once the connection is gone or speaks nonsense;
  // messages that came before the end are returned first.
  Result<std::vector<proto::BoxMessage>> receive();

 private:
  struct Address {
    sockaddr_storage address;
    socklen_t length;
  };
  explicit ControlChannel(std::string box) : box_(std::move(box)) {}
  Status try_next();
  Error unreachable(int error_number) const;

  std::vector<Address> addresses_;  // of the box
  size_t tried_ = 0;                // of these
  bool is_connected_ = false;
  int fd_ = -1;
  nic::Endpoint peer_;
  std::string box_;
  std::string outgoing_;
  wire::FrameReader reader_;
  std::string broken_;  // why the connection is over; empty while it stands
};

}  // namespace pbox::worker
