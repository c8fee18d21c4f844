// The control connections of one box: which member each one speaks for, and what has to be sent on
// them. The class has no sockets: it returns actions, and the server carries them out. Used on the
// control thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "appliance/control/job.h"
#include "base/result.h"
#include "nic/tls/identity.h"
#include "nic/wire/control.pb.h"

namespace pbox::control {

// An action on a connection. kClose takes effect after everything that was sent before.
struct Action {
  enum class Kind { kSend, kClose } kind = Kind::kSend;
  ConnectionId connection = 0;
  proto::BoxMessage message;
};

struct Connection {
  std::string peer;  // `endpoint` as text
  nic::Endpoint endpoint;
  uint64_t opened_ns = 0;
  uint64_t heard_ns = 0;  // time of the newest message, or of the opening
  Job* job = nullptr;     // null unless the connection speaks for a member
  uint32_t rank = 0;
  std::optional<tls::Identity> identity;  // absent without TLS
};

class ControlConnections {
 public:
  void open(ConnectionId id, const nic::Endpoint& peer, uint64_t now_ns,
            std::optional<tls::Identity> identity = {});
  // Returns null if the connection is not open.
  Connection* find(ConnectionId id);
  bool contains(ConnectionId id) const { return connections_.contains(id); }
  size_t size() const { return connections_.size(); }
  auto begin() { return connections_.begin(); }
  auto end() { return connections_.end(); }
  auto begin() const { return connections_.begin(); }
  auto end() const { return connections_.end(); }
  // Forgets the connection, which must be open, and returns what was known about it.
  Connection erase(ConnectionId id);

  void send(ConnectionId id, proto::BoxMessage message);
  // Sends to every joined member of the job.
  void send_all(const Job& job, const proto::BoxMessage& message);
  void close(ConnectionId id);
  // Sends a FAILURE and closes the connection.
  void refuse(ConnectionId id, const Error& error);
  // Tells a worker which box has the part now, and closes the connection.
  void redirect(ConnectionId id, const proto::PartPlace& place);
  // Makes the connection speak for no member any more.
  void detach(ConnectionId id);
  // Detaches the connection and closes it without a message.
  void drop(ConnectionId id);
  // Detaches the connection and refuses the worker.
  void dismiss(ConnectionId id, const Error& error);

  // Returns the actions since the last call, in order.
  std::vector<Action> take_actions() { return std::exchange(actions_, {}); }

 private:
  std::map<ConnectionId, Connection> connections_;
  std::vector<Action> actions_;
};

}  // namespace pbox::control
