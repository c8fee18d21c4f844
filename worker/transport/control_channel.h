// The worker's end of the control connection: framed messages over a non-blocking TCP socket, with
// TLS if the worker has keys. Used by one thread at a time.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "nic/endpoint.h"
#include "nic/tls/connection.h"
#include "nic/wire/control_frame.h"
#include "worker/transport/box_addresses.h"

namespace pbox::worker {

// Returns the error for a box whose name is still being resolved at the deadline.
Error unresolved(const std::string& box);

// A box to connect to.
struct ControlTarget {
  std::string box;                    // HOST:PORT, which errors name
  const tls::Client* keys = nullptr;  // null: without TLS; outlives the channel
  std::string name = {};              // with keys: the name that the box must prove; empty: any
};

class ControlChannel {
 public:
  // Starts to connect to the box at one of its addresses after another. An address that is silent
  // gets an equal share of the time until end_ns; the caller gives up the last one. No message can
  // be sent or received until connected().
  static Result<ControlChannel> open(const ControlTarget& target, BoxAddresses::Addresses addresses,
                                     uint64_t end_ns);
  // Connects, and blocks until the connection is established, for at most timeout_ms, or until
  // another thread has set `cancelled`. If no address answers, the name is resolved again.
  static Result<ControlChannel> connect(const ControlTarget& target, BoxAddresses& addresses,
                                        uint32_t timeout_ms,
                                        const std::atomic<bool>* cancelled = nullptr);
  // Returns true once the connection is established. Returns false while one of the box's addresses
  // is still being tried, or the TLS handshake is under way; call again when the descriptor has one
  // of events(). Returns an error if no address is left, or if the handshake has failed.
  Result<bool> connected();

  ControlChannel(ControlChannel&& other) noexcept;
  ControlChannel& operator=(ControlChannel&& other) noexcept;
  ~ControlChannel();

  int fd() const { return fd_; }
  const nic::Endpoint& peer() const { return peer_; }
  nic::Endpoint local() const;  // this end's address, once it has begun to connect
  const std::string& box() const { return target_.box; }
  const tls::Connection* tls() const { return tls_.get(); }  // null without keys

  // Queues a message and writes as much as the socket takes now.
  Status send(const proto::WorkerMessage& message);
  // Writes what is still queued. Also ok if the socket takes no more for now.
  Status flush();
  // Closes this direction of the connection. Call it when everything has been written.
  void end() const;
  bool wants_write() const { return !outgoing_.empty(); }
  // Returns the events of the descriptor to wait for, in the form of poll().
  short events() const;
  // Returns the messages that have arrived. Returns an error once the connection is closed or its
  // data cannot be decoded; messages that arrived before are returned first.
  Result<std::vector<proto::BoxMessage>> receive();

 private:
  ControlChannel(ControlTarget target, uint64_t end_ns)
      : end_ns_(end_ns), target_(std::move(target)) {}
  Status try_next();
  Result<bool> shake_hands();
  void read_socket();
  void take(std::string_view bytes);
  Error unreachable(int error_number) const;

  BoxAddresses::Addresses addresses_;
  size_t tried_ = 0;           // number of addresses tried so far
  uint64_t end_ns_;            // see open()
  uint64_t next_ns_ = 0;       // when the next address is tried, if this one is still silent
  bool is_reached_ = false;    // one of them has accepted the connection
  bool is_connected_ = false;  // and the TLS handshake, if keys need one, is done
  int fd_ = -1;
  nic::Endpoint peer_;
  ControlTarget target_;
  std::unique_ptr<tls::Connection> tls_;  // null without keys
  std::string outgoing_;
  wire::FrameReader reader_;
  std::optional<Error> broken_;  // why the connection is over
};

}  // namespace pbox::worker
